"""The commands of `onward`, one module for each topic."""
