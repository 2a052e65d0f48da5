"""The built-in closed world: probes that the project generates itself, as a pure function of a seed.

Facts and a lexicon to memorise, sequences to work out, requests to refuse or to answer; and the byte tokenizer.
"""
