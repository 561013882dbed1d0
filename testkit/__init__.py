"""The exported contract suites: serializers, upgrades and state backends, for users' own and for ours. Needs pytest.

No part of the product imports this package.
"""
