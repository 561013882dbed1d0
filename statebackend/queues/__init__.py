"""Priority queues of elements as bytes: what the queues of all backends share."""
