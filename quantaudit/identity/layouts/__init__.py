"""Layouts: what the tensors of a file mean, whatever they are called and however they are packed.

`opening` finds out what a path is, `recognise` turns names and dtypes into logical tensors (`logical`), and `stored`
decodes one matrix a few rows at a time. Nothing is imported here.
"""
