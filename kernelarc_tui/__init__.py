"""What a person touches: the ``kernelarc`` command line and the Textual app."""
