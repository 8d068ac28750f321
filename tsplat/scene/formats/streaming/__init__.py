"""PlayCanvas's Streamed SOG: levels of detail in many SOG datasets, which viewers load as needed."""
