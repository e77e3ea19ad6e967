package openapi_test

import (
	"encoding/json"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/getkin/kin-openapi/openapi3"

	parsed "sandbox.internal/openapi/document"
)

// document is what one of the documents that the project fulfils says in its tables. Lists are
// written as words with spaces between them.
type document struct {
	operations  map[string]documentedOperation // by method and path
	everyHeader string                         // a header of every response
	keyHeader   string                         // the header that carries the key or token
	schemas     map[string]documentedSchema    // every object; fields that a schema here does not list are ours
	limits      []limit
	values      map[string]string   // by schema: the values of a string
	errorCodes  map[string]string   // by status
	accepted    map[string][]string // by schema: JSON that the document allows
	refused     map[string][]string // by schema: JSON that it does not allow
}

type documentedOperation struct {
	statuses   string
	parameters []string            // as "query name"
	headers    map[string][]string // by status
	open       bool                // needs no key
}

type documentedSchema struct{ fields, required, nullable string }

// limit is a bound or a default of a property ("Schema.property") or of a parameter
// ("METHOD /path name").
type limit struct {
	at               string
	minimum, maximum *float64
	byDefault        any
}

func ptr(f float64) *float64 { return &f }

// contract pairs a contract with the document that it has to fulfil.
type contract struct {
	name string
	doc  *openapi3.T
	document
}

func contracts(t *testing.T) []contract {
	t.Helper()
	lifecycle, err := parsed.LoadLifecycle()
	if err != nil {
		t.Fatal(err)
	}
	execd, err := parsed.LoadExecd()
	if err != nil {
		t.Fatal(err)
	}
	egress, err := parsed.LoadEgress()
	if err != nil {
		t.Fatal(err)
	}
	return []contract{
		{"lifecycle", lifecycle, lifecycleDocument}, {"execd", execd, execdDocument}, {"egress", egress, egressDocument},
	}
}

// each runs a test on both contracts.
func each(t *testing.T, test func(t *testing.T, c contract)) {
	t.Helper()
	for _, c := range contracts(t) {
		t.Run(c.name, func(t *testing.T) { test(t, c) })
	}
}

// operation is an operation of a contract together with where it stands.
type operation struct {
	*openapi3.Operation
	route      string // method and path
	parameters openapi3.Parameters
}

func operations(doc *openapi3.T) []operation {
	var all []operation
	for path, item := range doc.Paths.Map() {
		for method, op := range item.Operations() {
			all = append(all, operation{op, method + " " + path, slices.Concat(item.Parameters, op.Parameters)})
		}
	}
	slices.SortFunc(all, func(a, b operation) int { return strings.Compare(a.route, b.route) })
	return all
}

// marked reports whether a thing is marked as one that the documents do not have. What a
// reference leads to carries the mark: OpenAPI 3.0 ignores anything next to a $ref.
func marked(extensions map[string]any) bool { return extensions["x-extension"] == true }

// compare demands that a thing is marked as an extension exactly when no document has it.
func compare(t *testing.T, what string, documented, isMarked bool) {
	t.Helper()
	if documented && isMarked {
		t.Errorf("%s is in the document, but is marked x-extension", what)
	}
	if !documented && !isMarked {
		t.Errorf("%s is not in the document, but is not marked x-extension", what)
	}
}

func TestOperationsAreTheDocuments(t *testing.T) {
	each(t, func(t *testing.T, c contract) {
		found := map[string]bool{}
		for _, op := range operations(c.doc) {
			found[op.route] = true
			want, documented := c.operations[op.route]
			compare(t, op.route, documented, marked(op.Extensions))
			if documented {
				compareResponses(t, c, op, want)
				compareParameters(t, op, want)
			}
		}
		for route := range c.operations {
			if !found[route] {
				t.Errorf("the document has %s, the contract does not", route)
			}
		}
	})
}

func compareResponses(t *testing.T, c contract, op operation, want documentedOperation) {
	t.Helper()
	statuses := strings.Fields(want.statuses)
	for status, response := range op.Responses.Map() {
		what := op.route + " " + status
		documented := slices.Contains(statuses, status)
		compare(t, what, documented, marked(response.Value.Extensions))
		if !documented {
			continue
		}
		for name, header := range response.Value.Headers {
			known := name == c.everyHeader || slices.Contains(want.headers[status], name)
			compare(t, what+" header "+name, known, marked(header.Value.Extensions))
		}
		for _, name := range want.headers[status] {
			if header := response.Value.Headers[name]; header == nil || !header.Value.Required {
				t.Errorf("%s: the document has header %s; the contract must require it", what, name)
			}
		}
	}
	for _, status := range statuses {
		if op.Responses.Value(status) == nil {
			t.Errorf("%s: the document has status %s, the contract does not", op.route, status)
		}
	}
}

func compareParameters(t *testing.T, op operation, want documentedOperation) {
	t.Helper()
	var names []string
	for _, ref := range op.parameters {
		name := ref.Value.In + " " + ref.Value.Name
		names = append(names, name)
		compare(t, op.route+" "+name, slices.Contains(want.parameters, name), marked(ref.Value.Extensions))
	}
	for _, name := range want.parameters {
		if !slices.Contains(names, name) {
			t.Errorf("%s: the document has parameter %s, the contract does not", op.route, name)
		}
	}
}

func TestSchemasAreTheDocuments(t *testing.T) {
	each(t, func(t *testing.T, c contract) {
		for name, ref := range c.doc.Components.Schemas {
			schema := ref.Value
			if !schema.Type.Is("object") {
				continue
			}
			want, documented := c.schemas[name]
			compare(t, name, documented, marked(schema.Extensions))
			fields := strings.Fields(want.fields)
			for field, property := range schema.Properties {
				if documented {
					compare(t, name+"."+field, slices.Contains(fields, field), marked(property.Value.Extensions))
				}
			}
			for _, field := range fields {
				if schema.Properties[field] == nil {
					t.Errorf("the document has %s.%s, the contract does not", name, field)
				}
			}
			if want.required != "" && !sameWords(schema.Required, want.required) {
				t.Errorf("%s requires %q, the document %q", name, schema.Required, want.required)
			}
			for _, field := range strings.Fields(want.nullable) {
				if !schema.Properties[field].Value.Nullable || !slices.Contains(schema.Required, field) {
					t.Errorf("%s.%s must be nullable and required: the document shows null", name, field)
				}
			}
		}
		for name := range c.schemas {
			if c.doc.Components.Schemas[name] == nil {
				t.Errorf("the document has the object %s, the contract does not", name)
			}
		}
	})
}

func sameWords(got []string, want string) bool {
	return slices.Equal(slices.Sorted(slices.Values(got)), slices.Sorted(slices.Values(strings.Fields(want))))
}

func TestLimitsAreTheDocuments(t *testing.T) {
	each(t, func(t *testing.T, c contract) {
		for _, want := range c.limits {
			at := want.at
			schema := find(c.doc, at)
			if schema == nil {
				t.Errorf("the contract has no %s", at)
				continue
			}
			if got, want := show(schema.Min), show(want.minimum); got != want && want != none {
				t.Errorf("%s: minimum %s, want %s", at, got, want)
			}
			if got, want := show(schema.Max), show(want.maximum); got != want && want != none {
				t.Errorf("%s: maximum %s, want %s", at, got, want)
			}
			if want.byDefault != nil && schema.Default != want.byDefault {
				t.Errorf("%s: default %v, want %v", at, schema.Default, want.byDefault)
			}
		}
	})
}

const none = "none"

func show(bound *float64) string {
	if bound == nil {
		return none
	}
	return strconv.FormatFloat(*bound, 'f', -1, 64)
}

func find(doc *openapi3.T, at string) *openapi3.Schema {
	if name, property, ok := strings.Cut(at, "."); ok {
		if ref := doc.Components.Schemas[name]; ref != nil && ref.Value.Properties[property] != nil {
			return ref.Value.Properties[property].Value
		}
		return nil
	}
	for _, op := range operations(doc) {
		for _, ref := range op.parameters {
			if at == op.route+" "+ref.Value.Name {
				return ref.Value.Schema.Value
			}
		}
	}
	return nil
}

func TestValuesAreTheDocuments(t *testing.T) {
	each(t, func(t *testing.T, c contract) {
		for name, words := range c.values {
			schema := c.doc.Components.Schemas[name].Value
			got := map[string]bool{} // whether the value is marked
			for _, value := range schema.Enum {
				got[value.(string)] = false
			}
			known, _ := schema.Extensions["x-known-values"].([]any)
			for _, entry := range known {
				entry := entry.(map[string]any)
				got[entry["value"].(string)] = entry["x-extension"] == true
			}
			want := strings.Fields(words)
			for value, isMarked := range got {
				compare(t, name+" "+value, slices.Contains(want, value), isMarked)
				if !strings.Contains(schema.Description, "`"+value+"`") {
					t.Errorf("the description of %s does not explain %s", name, value)
				}
			}
			for _, value := range want {
				if _, ok := got[value]; !ok {
					t.Errorf("the document has %s %s, the contract does not", name, value)
				}
			}
		}
	})
}

func TestErrorCodesAreTheDocuments(t *testing.T) {
	each(t, func(t *testing.T, c contract) {
		for _, op := range operations(c.doc) {
			for status, code := range c.errorCodes {
				response := op.Responses.Value(status)
				if response == nil {
					continue
				}
				shown, err := json.Marshal(response.Value.Content["application/json"])
				if err != nil {
					t.Fatal(err)
				}
				if !strings.Contains(string(shown), `"`+code+`"`) {
					t.Errorf("%s %s shows no error with code %s", op.route, status, code)
				}
			}
		}
	})
}

func TestRulesAreTheDocuments(t *testing.T) {
	each(t, func(t *testing.T, c contract) {
		for _, name := range slices.Sorted(maps.Keys(c.accepted)) {
			for _, text := range c.accepted[name] {
				if err := visit(t, c, name, text); err != nil {
					t.Errorf("%s refuses %s: %v", name, text, err)
				}
			}
		}
		for _, name := range slices.Sorted(maps.Keys(c.refused)) {
			for _, text := range c.refused[name] {
				if visit(t, c, name, text) == nil {
					t.Errorf("%s accepts %s", name, text)
				}
			}
		}
	})
}

// visit checks JSON against a schema of the contract.
func visit(t *testing.T, c contract, schema, text string) error {
	t.Helper()
	var value any
	if err := json.Unmarshal([]byte(text), &value); err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	ref := c.doc.Components.Schemas[schema]
	if ref == nil {
		t.Fatalf("the contract has no schema %s", schema)
	}
	return ref.Value.VisitJSON(value)
}
