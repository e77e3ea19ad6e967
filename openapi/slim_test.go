package openapi_test

import (
	"encoding/json"
	"testing"

	"github.com/getkin/kin-openapi/openapi3"

	"sandbox.internal/openapi"
)

// TestSlimContractAsksForTheSame compares what a service checks of requests with what the contract says about them.
func TestSlimContractAsksForTheSame(t *testing.T) {
	t.Parallel()
	whole, err := openapi.LoadExecd()
	if err != nil {
		t.Fatal(err)
	}
	slim, err := openapi.LoadExecdSlim()
	if err != nil {
		t.Fatal(err)
	}
	if slim.OpenAPI != whole.OpenAPI || slim.Paths.Len() != whole.Paths.Len() || len(slim.Security) != len(whole.Security) {
		t.Errorf("version %s with %d paths, want %s with %d", slim.OpenAPI, slim.Paths.Len(), whole.OpenAPI, whole.Paths.Len())
	}
	for path, item := range whole.Paths.Map() {
		thin := slim.Paths.Value(path)
		if thin == nil || len(thin.Operations()) != len(item.Operations()) {
			t.Fatalf("%s: other operations", path)
		}
		sameParameters(t, path, thin.Parameters, item.Parameters)
		for method, want := range item.Operations() {
			got := thin.GetOperation(method)
			if got == nil || got.OperationID != want.OperationID || (got.Security == nil) != (want.Security == nil) {
				t.Fatalf("%s %s is another operation", method, path)
			}
			sameParameters(t, want.OperationID, got.Parameters, want.Parameters)
			if (got.RequestBody == nil) != (want.RequestBody == nil) {
				t.Fatalf("%s: one has a body", want.OperationID)
			}
			if want.RequestBody == nil {
				continue
			}
			body := got.RequestBody.Value
			if body.Required != want.RequestBody.Value.Required || len(body.Content) != len(want.RequestBody.Value.Content) {
				t.Errorf("%s: another body", want.OperationID)
			}
			for media, content := range want.RequestBody.Value.Content {
				sameSchema(t, want.OperationID, body.Content[media].Schema, content.Schema)
			}
		}
	}
}

func sameParameters(t *testing.T, where string, got, want openapi3.Parameters) {
	t.Helper()
	if len(got) != len(want) {
		t.Errorf("%s: %d parameters, want %d", where, len(got), len(want))
		return
	}
	for i, parameter := range want {
		g, w := got[i].Value, parameter.Value
		if g.Name != w.Name || g.In != w.In || g.Required != w.Required {
			t.Errorf("%s: parameter %s in %s, want %s in %s", where, g.Name, g.In, w.Name, w.In)
		}
		sameSchema(t, where+" "+w.Name, g.Schema, w.Schema)
	}
}

// sameSchema compares what validates, following references.
func sameSchema(t *testing.T, where string, got, want *openapi3.SchemaRef) {
	t.Helper()
	if got == nil || got.Value == nil {
		t.Errorf("%s: no schema", where)
		return
	}
	g, w := *got.Value, *want.Value
	if g.Description = w.Description; len(g.Properties) != len(w.Properties) || (g.Items == nil) != (w.Items == nil) {
		t.Errorf("%s: another shape", where)
		return
	}
	for name, property := range w.Properties {
		sameSchema(t, where+"/"+name, g.Properties[name], property)
	}
	if w.Items != nil {
		sameSchema(t, where+"/items", g.Items, w.Items)
	}
	g.Properties, w.Properties, g.Items, w.Items = nil, nil, nil, nil
	g.Example, w.Example, g.Extensions, w.Extensions, g.Title, w.Title = nil, nil, nil, nil, "", ""
	// Those of additionalProperties differ in their descriptions.
	g.AdditionalProperties.Schema, w.AdditionalProperties.Schema = nil, nil
	gotText, err := json.Marshal(&g)
	if err != nil {
		t.Fatal(err)
	}
	wantText, err := json.Marshal(&w)
	if err != nil {
		t.Fatal(err)
	}
	if string(gotText) != string(wantText) {
		t.Errorf("%s: the schema is %s, want %s", where, gotText, wantText)
	}
}
