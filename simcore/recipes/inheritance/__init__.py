"""Recipes that say a part of their values elsewhere: in files that they inherit from, and by references to other keys.

Input: a recipe's document, and the files beside it. Output: a document in which every value stands by itself, each with
the file and line where it was said. Start: `parents.with_parents` and `references.resolved`.

`parents`: files that a recipe inherits from. `references`: values of `${a.b}`. `reference_syntax`: their
text.
"""
