"""Tests of `onward.coordinate`."""
