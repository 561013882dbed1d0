"""What may change between two versions of a type: the rules by which an old snapshot judges a new serializer.

A rule returns its verdict with the plan of what becomes of the bytes (`evolution_plans`), which `migration` compiles.
Nothing here converts a value, and no serializer or snapshot of a family is defined here.

This is the highest room of the package: a rule may look into every family, and no family imports a rule. A snapshot
asks a table for its rule, by its own class (`snapshots.type_serializer_snapshot.RULES`), so the imports have no circle,
and the walk from bytes to a verdict passes the file of the table, which it passes anyway, and that of the rule. The
modules of rules fill the table when they are imported, all of them with the package `typeserializers` (`all_rules`).
"""
