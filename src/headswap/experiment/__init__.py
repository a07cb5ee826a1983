"""The transfer experiment: what did pretraining buy, on this text and these labels?"""
