"""What a model card says of each kind of model: names, tasks, and how the model is used."""

from __future__ import annotations

from typing import NamedTuple

from tpulm.convert.card_facts import CardFacts
from tpulm.convert.heads import Head


class Words(NamedTuple):
    task: str  # what it was pretrained by
    tag: str
    pipeline: str  # transformers' name of the task
    usage: str  # Python; {name} and {text} are put in, quoted
    text: str  # the example where the facts have none
    classes: str
    bits: str  # what bits per character mean
    use: str


_FILL = """from transformers import pipeline

fill = pipeline("fill-mask", model={name})  # the name or path of the folder that holds this file
for answer in fill({text}):
    print(f"{{answer['score']:.3f}}  {{answer['sequence']}}")"""
_JUDGE = """from transformers import AutoModel, AutoModelForPreTraining, AutoModelForSequenceClassification

name = {name}  # the name or path of the folder that holds this file
encoder = AutoModel.from_pretrained(name)  # hidden states
judge = AutoModelForPreTraining.from_pretrained(name)  # a logit for each token: above 0, it looks replaced
classifier = AutoModelForSequenceClassification.from_pretrained(name, num_labels=2)  # to be fine-tuned"""
_WRITE = """from transformers import pipeline

write = pipeline("text-generation", model={name})  # the name or path of the folder that holds this file
print(write({text}, max_new_tokens=50)[0]["generated_text"])"""

_MASKED = Words(
    task="masked-language modelling",
    tag="masked-language-model",
    pipeline="fill-mask",
    usage=_FILL,
    text="… {mask} …",
    classes="`AutoModelForMaskedLM` and `AutoModel` load the weights, `AutoTokenizer` the tokenizer.",
    bits="masked-token loss / ln 2 × tokens / characters: comparable between vocabularies at one mask fraction",
    use="It fills gaps and represents text. For a task such as classification it must be fine-tuned; none has been evaluated.",
)
_BY_HEAD: dict[Head, Words] = {
    "masked": _MASKED,
    "next_sentence": _MASKED._replace(task="masked-language modelling and next-sentence prediction"),
    "detection": _MASKED._replace(
        task="replaced-token detection",
        tag="replaced-token-detection",
        pipeline="feature-extraction",
        usage=_JUDGE,
        classes="`AutoTokenizer` loads the tokenizer.",
        use="It tells replaced tokens and represents text. For a task such as classification it must be fine-tuned; none has "
        "been evaluated.",
    ),
    "next_token": Words(
        task="causal language modelling",
        tag="causal-language-model",
        pipeline="text-generation",
        usage=_WRITE,
        text="…",
        classes="`AutoModelForCausalLM` loads the weights, `AutoTokenizer` the tokenizer.",
        bits="loss / ln 2 × tokens / characters, ends of texts included: the length of the text in the model's code",
        use="It continues text, and invents what it says. It follows no instructions and has not been tuned on any task.",
    ),
}


def words_of(facts: CardFacts) -> Words:
    return _BY_HEAD[facts.head]


def architecture(facts: CardFacts) -> str:
    """What the model is, with the class of transformers that it is built as."""
    if facts.half == "discriminator":
        return "The discriminator of an ELECTRA, the half to fine-tune,"
    if facts.half == "generator":
        return "The generator of an ELECTRA, the small half that fills masks,"
    if facts.model.architecture == "decoder":
        return f"A causal Transformer (Hugging Face's {'GPT-2' if facts.model.positions == 'learned' else 'Llama'})"
    if facts.model.positions == "rotary":
        return "A pre-norm BERT with rotary positions (Hugging Face's EuroBERT)"
    return "A BERT" if facts.model.norm_position == "post" else "A pre-norm BERT (Hugging Face's Megatron-BERT)"
