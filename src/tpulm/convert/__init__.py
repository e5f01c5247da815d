"""Models to and from the formats of Hugging Face, Google's TF1 checkpoints, sentence-transformers and ONNX.

A parameter's way out: `names` says what it is called and how it lies there, `tensors` reshapes it, `huggingface` writes it
beside config.json (`config_json`, `heads`), the tokenizer and the card (`model_card`, `markdown`); `sentence_transformers` and
`onnx` add their files. The way in is `importing`, by the same tables, from Hugging Face's files or those of TensorFlow
(`tensorflow1`, read by `tensorbundle`), also of close `relatives` such as RoBERTa. `continuing` begins a run with what was
imported, also under another tokenizer.
"""
