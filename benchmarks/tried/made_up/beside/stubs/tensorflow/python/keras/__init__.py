"""Stands in for a package of TensorFlow, of which only Keras' callbacks are wanted."""
