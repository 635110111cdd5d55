"""Maps: functions of queries and keys (features) whose products replace exp(q.k) in linear attention."""
