"""Job harness, contract suites for serializers, upgrades, backends and stores, and the pytest plugin.

Other packages of Statebackend do not import this package.
"""
