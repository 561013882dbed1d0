"""Priority queues, which have no current key: their descriptor, and queues of elements as bytes for any store.

Where the elements are stored is a store's business, and must not be here.
"""
