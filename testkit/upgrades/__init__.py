"""The laws of an upgrade as a pytest class, for users' own serializers and for ours.

A verdict is held to what migrating values shows. No backend is needed; upgrades of state are in `testkit.backends`.
"""

from testkit.upgrades.upgrade_contract import UpgradeContract, assert_valid, check_upgrade

__all__ = ["UpgradeContract", "assert_valid", "check_upgrade"]
