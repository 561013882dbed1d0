"""Job harness, contract suites for serializers, upgrades, backends and stores, and the pytest plugin.

No part of the product imports this package.
"""
