"""The app: the `Onward` class, the registry of handlers, and the functions that hear events. Only this package joins concrete parts."""
