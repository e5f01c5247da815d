"""What a model card says of each architecture: names, tasks, and how the model is used."""

from __future__ import annotations

from pathlib import PurePath
from typing import NamedTuple

from tpulm.convert.card_facts import CardFacts
from tpulm.convert.heads import Head
from tpulm.convert.markdown import code


class Words(NamedTuple):
    pipeline: str  # transformers' name of the task
    tags: tuple[str, ...]
    task: str  # what it was trained by
    usage: str  # Python; {name} and {text} are put in, quoted
    text: str  # {mask}: the example where the facts have none
    classes: str
    bits: str  # what bits per character mean
    use: str


_MASKED = Words(
    pipeline="fill-mask",
    tags=("masked-language-model",),
    task="masked-language modelling",
    usage="""from transformers import pipeline

fill = pipeline("fill-mask", model={name})  # the name or path of the folder that holds this file
for answer in fill({text}):
    print(f"{{answer['score']:.3f}}  {{answer['sequence']}}")""",
    text="… {mask} …",
    classes="`AutoModelForMaskedLM` and `AutoModel` load the weights, `AutoTokenizer` the tokenizer.",
    bits="masked-token loss / ln 2 × tokens / characters: comparable between vocabularies at one mask fraction",
    use="It fills gaps and represents text. For a task such as classification it must be fine-tuned; none has been evaluated.",
)
_CAUSAL = Words(
    pipeline="text-generation",
    tags=("causal-language-model",),
    task="causal language modelling",
    usage="""from transformers import pipeline

write = pipeline("text-generation", model={name})  # the name or path of the folder that holds this file
print(write({text}, max_new_tokens=50)[0]["generated_text"])""",
    text="…",
    classes="`AutoModelForCausalLM` loads the weights, `AutoTokenizer` the tokenizer.",
    bits="loss / ln 2 × tokens / characters, ends of texts included: the length of the text in the model's code",
    use="It continues text, and invents what it says. It follows no instructions and has not been tuned on any task.",
)
_DETECTION = Words(
    pipeline="feature-extraction",
    tags=("replaced-token-detection",),
    task="replaced-token detection",
    usage="""from transformers import AutoModel, AutoModelForPreTraining, AutoModelForSequenceClassification

encoder = AutoModel.from_pretrained({name})  # hidden states; the name or path of the folder that holds this file
judge = AutoModelForPreTraining.from_pretrained({name})  # a logit for each token: above 0, it looks replaced
classifier = AutoModelForSequenceClassification.from_pretrained({name}, num_labels=2)  # to be fine-tuned""",
    text="…",
    classes="`AutoTokenizer` loads the tokenizer.",
    bits=_MASKED.bits,
    use="It tells replaced tokens and represents text. For a task such as classification it must be fine-tuned; none has been "
    "evaluated.",
)
_BY_HEAD: dict[Head, Words] = {
    "masked": _MASKED,
    "next_sentence": _MASKED._replace(task="masked-language modelling and next-sentence prediction"),
    "detection": _DETECTION,
    "causal": _CAUSAL,
}


def words_of(head: Head) -> Words:
    return _BY_HEAD[head]


def origin(facts: CardFacts) -> str:
    """What the weights began as, and what they were trained to do."""
    task, start = words_of(facts.head).task, facts.config.train.start_from
    if facts.config.train.objective.whole_words and facts.head != "causal":
        task += ", with whole words masked,"
    if start is None:
        return f"was pretrained from scratch by {task}"
    names = [name for name in PurePath(start).parts if name not in ("export", "/")]
    return f"was trained further, from the weights of {code(names[-1] if names else start)}, by {task}"


def morphemes(facts: CardFacts) -> str:
    """What the tokenizer needs that cuts texts into morphemes first, and whether others can."""
    match facts.config.tokenizer.morphemes:
        case "mecab":
            return "\n\nThe tokenizer cuts texts into morphemes first, with MeCab: `pip install fugashi unidic-lite`."
        case "kiwi":
            return (
                "\n\n**The tokenizer cannot be loaded by transformers**, which has none that cuts Korean into morphemes first, "
                "as this one does with Kiwi. tpulm loads it (with its extra `ko` installed: `tpulm.load_model`, "
                "`tpulm fill-mask` and `tpulm finetune`). The weights are like any other's."
            )
    return ""


def architecture(facts: CardFacts) -> str:
    """What the model is, with the class of transformers that it is built as."""
    model = facts.model
    if model.architecture == "decoder":
        return "A causal Transformer (Hugging Face's " + ("GPT-2)" if model.positions == "learned" else "Llama)")
    if model.architecture == "electra":
        what = "discriminator of an ELECTRA, the half to fine-tune," if facts.half == "discriminator" else ""
        return "The " + (what or "generator of an ELECTRA, the small half that fills masks,")
    if model.positions == "rotary":
        return "A pre-norm BERT with rotary positions (Hugging Face's EuroBERT)"
    return "A BERT" if model.norm_position == "post" else "A pre-norm BERT (Hugging Face's Megatron-BERT)"
