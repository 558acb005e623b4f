"""Programs for those who work on Onward. No part of the package."""
