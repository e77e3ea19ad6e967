package openapi_test

import (
	"testing"

	parsed "sandbox.internal/openapi/document"
)

// TestEveryOperationWithAKeyIsRateLimited: the limits are those of keys.
func TestEveryOperationWithAKeyIsRateLimited(t *testing.T) {
	doc, err := parsed.LoadLifecycle()
	if err != nil {
		t.Fatal(err)
	}
	for _, op := range operations(doc) {
		open := op.Security != nil && len(*op.Security) == 0
		limited := op.Responses.Value("429")
		switch {
		case open == (limited != nil):
			t.Errorf("%s: open is %t, but declaring 429 is %t", op.route, open, limited != nil)
		case limited != nil && limited.Value.Headers["Retry-After"] == nil:
			t.Errorf("%s: 429 has no Retry-After", op.route)
		}
	}
}

// lifecycleDocument is the lifecycle document's tables.
var lifecycleDocument = document{
	operations: map[string]documentedOperation{
		"GET /health": {statuses: "200", open: true},
		"POST /v1/sandboxes": {
			statuses: "202 400 401 409 500",
			headers:  map[string][]string{"202": {"Location"}},
		},
		"GET /v1/sandboxes": {
			statuses:   "200 400 401 500",
			parameters: []string{"query state", "query metadata", "query page", "query pageSize"},
		},
		"GET /v1/sandboxes/{sandboxId}": {
			statuses:   "200 401 403 404 500",
			parameters: []string{"path sandboxId"},
		},
		"DELETE /v1/sandboxes/{sandboxId}": {
			statuses:   "204 401 403 404 409 500",
			parameters: []string{"path sandboxId"},
		},
		"POST /v1/sandboxes/{sandboxId}/pause": {
			statuses:   "202 401 403 404 409 500",
			parameters: []string{"path sandboxId"},
		},
		"POST /v1/sandboxes/{sandboxId}/resume": {
			statuses:   "202 401 403 404 409 500",
			parameters: []string{"path sandboxId"},
		},
		"POST /v1/sandboxes/{sandboxId}/renew-expiration": {
			statuses:   "200 400 401 403 404 409 500",
			parameters: []string{"path sandboxId"},
		},
		"GET /v1/sandboxes/{sandboxId}/endpoints/{port}": {
			// Its own set is not shown, so the one that the document has for all holds.
			statuses:   "200 400 401 403 404 409 500",
			parameters: []string{"path sandboxId", "path port"},
		},
	},
	everyHeader: "X-Request-ID",
	keyHeader:   "SERVICE-API-KEY",
	schemas: map[string]documentedSchema{
		"Health":         {fields: "status"},
		"Sandbox":        {fields: "id image status metadata entrypoint expiresAt createdAt"},
		"CreatedSandbox": {fields: "id status metadata entrypoint expiresAt createdAt"},
		"SandboxStatus":  {fields: "state reason message lastTransitionAt"},
		"CreateSandboxRequest": {
			fields: "image timeout resourceLimits entrypoint env metadata networkPolicy volumes extensions",
			// The image and the resource limits, too, but for requests with snapshotId, and the
			// entrypoint, but for those and for imageEntrypoint, which are extensions: server/api and
			// lifecycle.Spec.Validate.
			required: "timeout",
		},
		"Image":          {fields: "uri auth"},
		"ImageAuth":      {fields: "username password"},
		"ResourceLimits": {fields: "cpu memory gpu"},
		"Env":            {},
		"Metadata":       {},
		"Extensions":     {},
		"NetworkPolicy":  {fields: "defaultAction egress"},
		"EgressRule":     {fields: "action target"},
		"Volume":         {fields: "name mountPath readOnly subPath host pvc"},
		"HostSource":     {fields: "path"},
		"ClaimSource":    {fields: "claimName"},
		"RenewRequest":   {fields: "expiresAt", required: "expiresAt"},
		"Expiration":     {fields: "expiresAt"},
		"SandboxList":    {fields: "items pagination"},
		"Pagination":     {fields: "page pageSize totalItems totalPages hasNextPage"},
		"Error":          {fields: "detail"},
	},
	limits: []limit{
		{at: "CreateSandboxRequest.timeout", minimum: ptr(60), maximum: ptr(86400)},
		{at: "GET /v1/sandboxes page", minimum: ptr(1), byDefault: 1.0},
		{at: "GET /v1/sandboxes pageSize", minimum: ptr(1), byDefault: 20.0},
	},
	values: map[string]string{
		"SandboxState":  "Pending Running Pausing Paused Stopping Terminated Failed",
		"NetworkAction": "allow deny",
	},
	accepted: map[string][]string{
		"CreateSandboxRequest": {
			`{"image":{"uri":"a"},"timeout":60,"resourceLimits":{"cpu":"100m","memory":"128Mi"},"entrypoint":["a"]}`,
			`{"image":{"uri":"a"},"timeout":86400,"resourceLimits":{"cpu":"0.5","memory":"1Gi","gpu":"1"},"entrypoint":["a",""]}`,
			`{"image":{"uri":"a"},"timeout":60,"resourceLimits":{"cpu":"1"},"entrypoint":["a"],"networkPolicy":{},"extensions":{"a.b":{"c":[1]}}}`,
		},
	},
	refused: map[string][]string{
		"CreateSandboxRequest": {
			`{"image":{"uri":"a"},"resourceLimits":{},"entrypoint":["a"]}`,
			`{"image":{"uri":"a"},"timeout":60,"resourceLimits":{},"entrypoint":[]}`,
			`{"image":{"uri":"a"},"timeout":60,"resourceLimits":{},"entrypoint":["a"],"enviroment":{}}`,
			`{"image":{"uri":"a"},"timeout":59,"resourceLimits":{},"entrypoint":["a"]}`,
			`{"image":{"uri":"a"},"timeout":86401,"resourceLimits":{},"entrypoint":["a"]}`,
			`{"image":{"uri":"a"},"timeout":60,"resourceLimits":{"cpu":"half"},"entrypoint":["a"]}`,
			`{"image":{"uri":"a"},"timeout":60,"resourceLimits":{"memory":"1 GB"},"entrypoint":["a"]}`,
			`{"image":{"uri":"a"},"timeout":60,"resourceLimits":{"cpu":1},"entrypoint":["a"]}`,
			`{"image":{"uri":"a"},"timeout":60,"resourceLimits":{},"entrypoint":["a"],"env":{"A":1}}`,
		},
		"RenewRequest": {`{}`, `{"expiresAt":"tomorrow"}`, `{"expiresAt":1767366245}`},
	},
}
