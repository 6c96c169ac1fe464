"""From an allocated claim to a limited container: plan, record, CDI spec; prepare, unprepare, recover."""
