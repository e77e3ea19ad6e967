package openapi_test

// egressDocument is what the sidecar was asked to offer. No older document has it, so nothing of it
// is an extension.
var egressDocument = document{
	operations: map[string]documentedOperation{
		"GET /healthz":            {statuses: "200 400", open: true},
		"GET /policy":             {statuses: "200 400 401 500"},
		"PUT /policy":             {statuses: "200 400 401 413 500"},
		"PATCH /policy":           {statuses: "200 400 401 413 500"},
		"DELETE /policy":          {statuses: "200 400 401 413 500"},
		"GET /decisions":          {statuses: "200 400 401 500", parameters: []string{"header Last-Event-ID"}},
		"GET /decisions/proposal": {statuses: "200 400 401 500"},
	},
	keyHeader: "X-EGRESS-ACCESS-TOKEN",
	schemas: map[string]documentedSchema{
		"Health":       {fields: "status startedAt restarts", required: "status startedAt restarts"},
		"Policy":       {fields: "defaultAction egress dryRun"},
		"EgressRule":   {fields: "action target", required: "action target"},
		"DecisionList": {fields: "items", required: "items"},
		"Decision": {
			fields:   "kind target protocol port names action dryRun reason rule count firstSeen lastSeen",
			required: "kind target action reason count firstSeen lastSeen",
		},
		"Error": {fields: "code message", required: "code message"},
	},
	values: map[string]string{"NetworkAction": "allow deny"},
	errorCodes: map[string]string{
		"400": "INVALID_REQUEST_BODY",
		"401": "UNAUTHORIZED",
		"413": "REQUEST_TOO_LARGE",
		"500": "INTERNAL_ERROR",
	},
	accepted: map[string][]string{
		"Policy": {
			`{}`,
			`{"defaultAction":"deny","egress":[{"action":"allow","target":"*.example.com"}]}`,
			`{"defaultAction":"allow","egress":[],"dryRun":true}`,
		},
		"EgressRules":   {`[]`, `[{"action":"deny","target":"10.0.0.0/8"}]`},
		"EgressTargets": {`[]`, `["example.com"]`},
	},
	refused: map[string][]string{
		"Policy":        {`{"defaultAction":"drop"}`, `{"ingress":[]}`, `{"egress":{}}`},
		"EgressRules":   {`[{"action":"deny"}]`, `[{"target":"example.com"}]`, `["example.com"]`, `[{"action":"deny","target":""}]`},
		"EgressTargets": {`[""]`, `[{"target":"example.com"}]`},
	},
}
