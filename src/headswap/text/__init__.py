"""From files to examples: corpus, tokenizer, shards, loader."""
