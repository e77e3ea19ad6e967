package openapi_test

import (
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/getkin/kin-openapi/openapi3"
)

// schemas calls visit with every schema that a contract holds, at its place of
// definition. A reference leads to a component, which has its own turn.
func schemas(doc *openapi3.T, visit func(at string, named bool, schema *openapi3.Schema)) {
	var walk func(at string, named bool, ref *openapi3.SchemaRef)
	walk = func(at string, named bool, ref *openapi3.SchemaRef) {
		if ref == nil || ref.Ref != "" {
			return
		}
		visit(at, named, ref.Value)
		for name, property := range ref.Value.Properties {
			walk(at+"."+name, false, property)
		}
		walk(at+"[]", false, ref.Value.Items)
		walk(at+".*", false, ref.Value.AdditionalProperties.Schema)
	}
	content := func(at string, content openapi3.Content) {
		for mediaType, c := range content {
			walk(at+" "+mediaType, false, c.Schema)
		}
	}
	response := func(at string, ref *openapi3.ResponseRef) {
		if ref.Ref != "" {
			return
		}
		content(at, ref.Value.Content)
		for name, header := range ref.Value.Headers {
			if header.Ref == "" {
				walk(at+" header "+name, false, header.Value.Schema)
			}
		}
	}
	for name, ref := range doc.Components.Schemas {
		walk(name, true, ref)
	}
	for name, ref := range doc.Components.Parameters {
		walk("parameter "+name, false, ref.Value.Schema)
	}
	for name, ref := range doc.Components.Headers {
		walk("header "+name, false, ref.Value.Schema)
	}
	for name, ref := range doc.Components.Responses {
		response("response "+name, ref)
	}
	for _, op := range operations(doc) {
		for _, ref := range op.parameters {
			if ref.Ref == "" {
				walk(op.route+" "+ref.Value.Name, false, ref.Value.Schema)
			}
		}
		if op.RequestBody != nil {
			content(op.route+" body", op.RequestBody.Value.Content)
		}
		for status, ref := range op.Responses.Map() {
			response(op.route+" "+status, ref)
		}
	}
}

func TestVersionOfTheLanguage(t *testing.T) {
	each(t, func(t *testing.T, c contract) {
		if c.doc.OpenAPI != "3.0.3" {
			t.Errorf("openapi is %s; validation with 3.1 is ten times slower", c.doc.OpenAPI)
		}
	})
}

func TestOperationsIntroduceThemselves(t *testing.T) {
	lowerCamel := regexp.MustCompile(`^[a-z]+([A-Z][a-z]+)*$`)
	each(t, func(t *testing.T, c contract) {
		for _, op := range operations(c.doc) {
			if !lowerCamel.MatchString(op.OperationID) {
				t.Errorf("%s: operationId %q is not lowerCamelCase", op.route, op.OperationID)
			}
			if op.Summary == "" || strings.HasSuffix(op.Summary, ".") {
				t.Errorf("%s: summary %q must be a phrase without a full stop", op.route, op.Summary)
			}
			if len(op.Tags) != 1 || c.doc.Tags.Get(op.Tags[0]) == nil {
				t.Errorf("%s: tags %q must be one tag that the contract describes", op.route, op.Tags)
			}
			for _, ref := range op.parameters {
				if ref.Value.Description == "" {
					t.Errorf("%s: parameter %s has no description", op.route, ref.Value.Name)
				}
			}
			if op.RequestBody != nil && op.RequestBody.Value.Description == "" {
				t.Errorf("%s: the request body has no description", op.route)
			}
			for status, ref := range op.Responses.Map() {
				for name, header := range ref.Value.Headers {
					if header.Value.Description == "" {
						t.Errorf("%s %s: header %s has no description", op.route, status, name)
					}
				}
			}
		}
		for _, tag := range c.doc.Tags {
			if tag.Description == "" {
				t.Errorf("tag %s has no description", tag.Name)
			}
		}
	})
}

func TestSchemasAreDescribedAndNamed(t *testing.T) {
	each(t, func(t *testing.T, c contract) {
		schemas(c.doc, func(at string, named bool, schema *openapi3.Schema) {
			if schema.Description == "" {
				t.Errorf("%s has no description", at)
			}
			isObject := schema.Type.Is("object") || len(schema.Properties) > 0 || schema.AdditionalProperties.Schema != nil
			if isObject && !named {
				t.Errorf("%s is an inline object: give it a name among the components", at)
			}
		})
		for _, op := range operations(c.doc) {
			// The generated client names its own types so.
			name := strings.ToUpper(op.OperationID[:1]) + op.OperationID[1:] + "Response"
			if c.doc.Components.Schemas[name] != nil {
				t.Errorf("schema %s collides with a type of the generated client", name)
			}
		}
	})
}

func TestRequestBodiesRefuseUnknownFields(t *testing.T) {
	each(t, func(t *testing.T, c contract) {
		var check func(at string, ref *openapi3.SchemaRef)
		check = func(at string, ref *openapi3.SchemaRef) {
			if ref == nil {
				return
			}
			extra := ref.Value.AdditionalProperties
			if len(ref.Value.Properties) > 0 && (extra.Has == nil || *extra.Has) {
				t.Errorf("%s (%s) accepts unknown fields, so a typo would pass", at, ref.Ref)
			}
			for name, property := range ref.Value.Properties {
				check(at+"."+name, property)
			}
			check(at, ref.Value.Items)
			check(at, extra.Schema)
		}
		for _, op := range operations(c.doc) {
			if op.RequestBody == nil {
				continue
			}
			if body := op.RequestBody.Value.Content["application/json"]; body != nil {
				check(op.route, body.Schema)
			}
		}
	})
}

// TestSchemasLeaveNamesToGenerators keeps names free that generators make of others: ogen wraps an
// answer that has headers.
func TestSchemasLeaveNamesToGenerators(t *testing.T) {
	each(t, func(t *testing.T, c contract) {
		for name := range c.doc.Components.Schemas {
			if wrapped, ok := strings.CutSuffix(name, "Headers"); ok && c.doc.Components.Schemas[wrapped] != nil {
				t.Errorf("schema %s has the name of the wrapper that ogen makes of %s", name, wrapped)
			}
		}
	})
}

// TestEveryOperationDeclaresBadRequest: a query parameter that an operation does not have is 400
// everywhere.
func TestEveryOperationDeclaresBadRequest(t *testing.T) {
	each(t, func(t *testing.T, c contract) {
		for _, op := range operations(c.doc) {
			if op.Responses.Value("400") == nil {
				t.Errorf("%s declares no 400", op.route)
			}
		}
	})
}

func TestKeysAndRequestIDs(t *testing.T) {
	each(t, func(t *testing.T, c contract) {
		if len(c.doc.Security) != 1 || len(c.doc.Components.SecuritySchemes) != 1 {
			t.Fatal("the contract must have one kind of key, needed everywhere")
		}
		for _, ref := range c.doc.Components.SecuritySchemes {
			if s := ref.Value; s.Type != "apiKey" || s.In != "header" || s.Name != c.keyHeader {
				t.Errorf("the key is %s in %s %s, want header %s", s.Type, s.In, s.Name, c.keyHeader)
			}
		}
		for _, op := range operations(c.doc) {
			open := op.Security != nil && len(*op.Security) == 0
			if open != c.operations[op.route].open {
				t.Errorf("%s: open is %t", op.route, open)
			}
			if declares := op.Responses.Value("401") != nil; declares == open {
				t.Errorf("%s: open is %t, but declaring 401 is %t", op.route, open, declares)
			}
			if c.everyHeader == "" {
				continue
			}
			for status, ref := range op.Responses.Map() {
				header := ref.Value.Headers[c.everyHeader]
				if header == nil {
					t.Errorf("%s %s: header %s is missing", op.route, status, c.everyHeader)
				} else if header.Value.Required {
					// Generated code would overwrite the middleware's value with "".
					t.Errorf("%s %s: header %s must stay optional", op.route, status, c.everyHeader)
				}
			}
		}
	})
}

func TestExamplesOfStreams(t *testing.T) {
	each(t, func(t *testing.T, c contract) {
		for _, op := range operations(c.doc) {
			for status, ref := range op.Responses.Map() {
				stream := ref.Value.Content["text/event-stream"]
				if stream == nil {
					continue
				}
				at := op.route + " " + status
				name, _ := stream.Extensions["x-event-schema"].(string)
				example, _ := stream.Example.(string)
				events := strings.Split(strings.TrimSuffix(example, "\n\n"), "\n\n")
				if name == "" || !strings.HasSuffix(example, "\n\n") {
					t.Errorf("%s: the stream needs x-event-schema and an example of whole events, has %q and %q", at, name, example)
					continue
				}
				for _, event := range events {
					if err := checkEvent(t, c, name, event); err != nil {
						t.Errorf("%s: %v", at, err)
					}
				}
			}
		}
	})
}

func checkEvent(t *testing.T, c contract, schema, event string) error {
	t.Helper()
	for line := range strings.Lines(event) {
		field, value, _ := strings.Cut(strings.TrimSuffix(line, "\n"), ": ")
		if field == "data" {
			return visit(t, c, schema, value)
		}
	}
	return fmt.Errorf("event %q has no data", event)
}

func TestExampleOfUploadMetadata(t *testing.T) {
	each(t, func(t *testing.T, c contract) {
		form := c.doc.Components.Schemas["UploadForm"]
		if form == nil {
			return
		}
		example, _ := form.Value.Properties["metadata"].Value.Example.(string)
		if err := visit(t, c, "UploadMetadata", example); err != nil {
			t.Error(err)
		}
	})
}

// Loading validates the examples; this proves that it would notice.
func TestAWrongExampleIsNoticed(t *testing.T) {
	each(t, func(t *testing.T, c contract) {
		planted := 0
		for _, name := range []string{"Error", "Metadata", "StreamEventType"} {
			ref := c.doc.Components.Schemas[name]
			if ref == nil {
				continue
			}
			planted++
			before := ref.Value.Example
			ref.Value.Example = 42.0
			if err := c.doc.Validate(t.Context()); err == nil || !strings.Contains(err.Error(), "example") {
				t.Errorf("a wrong example of %s gave %v", name, err)
			}
			ref.Value.Example = before
		}
		if planted == 0 {
			t.Error("no example was tried")
		}
	})
}

func TestEveryObjectIsUsed(t *testing.T) {
	// Named by descriptions only: events by x-event-schema, metadata as JSON in a form.
	described := []string{"StreamEvent", "UploadMetadata", "FileEvent", "TerminalControl", "TerminalNews", "SandboxEvent", "HostLoad", "Decision",
		"IdleEvent"}
	each(t, func(t *testing.T, c contract) {
		text, err := json.Marshal(c.doc)
		if err != nil {
			t.Fatal(err)
		}
		for name := range c.doc.Components.Schemas {
			if !strings.Contains(string(text), `"#/components/schemas/`+name+`"`) && !slices.Contains(described, name) {
				t.Errorf("schema %s is used nowhere", name)
			}
		}
	})
}
