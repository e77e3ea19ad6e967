package openapi_test

// execdDocument is the execution document's tables, without the operations on code,
// which are not built yet. That document gives statuses for the service as a whole and
// none for a missing token, so 401 counts as ours everywhere.
var execdDocument = document{
	operations: map[string]documentedOperation{
		"GET /ping":                {statuses: "200", open: true},
		"GET /metrics":             {statuses: "200 400 500"},
		"GET /metrics/watch":       {statuses: "200 500"},
		"POST /command":            {statuses: "200 400 500"},
		"GET /command/status/{id}": {statuses: "200 404 500", parameters: []string{"path id"}},
		"GET /command/{id}/logs": {
			statuses:   "200 400 404 500",
			parameters: []string{"path id", "query cursor"},
			headers:    map[string][]string{"200": {"EXECD-COMMANDS-TAIL-CURSOR"}},
		},
		"DELETE /command":         {statuses: "200 400 404 500", parameters: []string{"query id"}},
		"GET /files/info":         {statuses: "200 400 404 500", parameters: []string{"query path"}},
		"DELETE /files":           {statuses: "200 400 404 500", parameters: []string{"query path"}},
		"POST /files/permissions": {statuses: "200 400 404 500"},
		"POST /files/mv":          {statuses: "200 400 404 500"},
		"GET /files/search":       {statuses: "200 400 404 500", parameters: []string{"query path", "query pattern"}},
		"POST /files/replace":     {statuses: "200 400 404 500"},
		"POST /files/upload":      {statuses: "200 400 404 500"},
		"GET /files/download": {
			statuses:   "200 206 400 404 416 500",
			parameters: []string{"query path", "header Range"},
			headers: map[string][]string{
				"200": {"Content-Disposition", "Content-Length"},
				"206": {"Content-Disposition", "Content-Length", "Content-Range"},
			},
		},
		"POST /directories":   {statuses: "200 400 500"},
		"DELETE /directories": {statuses: "200 400 404 500", parameters: []string{"query path"}},
	},
	keyHeader: "X-EXECD-ACCESS-TOKEN",
	schemas: map[string]documentedSchema{
		"Empty":             {},
		"FileInfo":          {fields: "path size modified_at created_at owner group mode"},
		"FileInfoByPath":    {},
		"Permission":        {fields: "owner group mode"},
		"PermissionByPath":  {},
		"Move":              {fields: "src dest"},
		"Replacement":       {fields: "old new"},
		"ReplacementByPath": {},
		"UploadForm":        {fields: "metadata file", required: "metadata file"},
		"UploadMetadata":    {fields: "path owner group mode"},
		"CommandRequest":    {fields: "command cwd background timeout", required: "command"},
		"CommandStatus": {
			fields:   "id content running exit_code error started_at finished_at",
			nullable: "exit_code finished_at",
		},
		"Metrics":     {fields: "cpu_count cpu_used_pct mem_total_mib mem_used_mib timestamp"},
		"StreamEvent": {fields: "type text timestamp execution_time error"},
		"StreamError": {},
		"Error":       {fields: "code message"},
	},
	limits: []limit{
		{at: "Metrics.cpu_used_pct", minimum: ptr(0), maximum: ptr(100)},
		{at: "CommandRequest.background", byDefault: false},
		{at: "GET /files/search pattern", byDefault: "**"},
	},
	values: map[string]string{
		"StreamEventType": "init status stdout stderr execution_complete error ping",
	},
	errorCodes: map[string]string{
		"400": "INVALID_REQUEST_BODY",
		"404": "FILE_NOT_FOUND",
		"416": "RANGE_NOT_SATISFIABLE",
		"500": "RUNTIME_ERROR",
	},
	accepted: map[string][]string{
		"CommandRequest": {`{"command":"ls"}`, `{"command":"ls","cwd":"/","background":true,"timeout":1}`},
		"CommandStatus": {
			`{"id":"1","content":"ls","running":true,"exit_code":null,"started_at":"2026-01-02T15:04:05Z","finished_at":null}`,
		},
		"PermissionByPath": {`{"/a":{"owner":"root","group":"root","mode":755}}`, `{"/a":{"mode":0}}`},
		"Moves":            {`[{"src":"/a","dest":"/b"}]`},
	},
	refused: map[string][]string{
		"CommandRequest": {`{}`, `{"command":""}`, `{"command":"ls","timeout":-1}`, `{"command":"ls","backgroud":true}`},
		"CommandStatus": {
			`{"id":"1","content":"ls","running":true,"started_at":"2026-01-02T15:04:05Z","finished_at":null}`,
		},
		"PermissionByPath":  {`{"/a":{"mode":"755"}}`, `{"/a":{"mode":-1}}`, `[]`},
		"Moves":             {`[{"src":"/a"}]`, `{"src":"/a","dest":"/b"}`},
		"ReplacementByPath": {`{"/a":{"old":"x"}}`, `{"/a":{"old":"","new":"x"}}`},
	},
}
