"""Words for times in English and Chinese: what they mean on the calendar, and what they mean together."""
