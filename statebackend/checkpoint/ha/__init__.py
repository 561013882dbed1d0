"""Leadership and checkpoint pointers in ZooKeeper and object stores."""
