"""What every repair of the library is worth, over several seeds: `python -m benchmarks.recipes WORK`.

`cells` runs a recipe with a seed and keeps the result in the work folder, so a stopped run goes on; `table` writes
recipes/README.md from the results.
"""
