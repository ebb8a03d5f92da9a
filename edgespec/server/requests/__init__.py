"""What requests become, in whatever dialect they came: fields, messages, tools, wanted generations."""
