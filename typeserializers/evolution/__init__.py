"""What may change between two versions of a type: every rule by which an old snapshot judges a new serializer.

Nothing here converts a value: a verdict is carried out in `migration`.
"""
