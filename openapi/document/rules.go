package document

import (
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/getkin/kin-openapi/openapi3"

	"sandbox.internal/openapi/rules"
)

// Rules returns what a document says about requests. It fails when that cannot be enforced: a
// version other than 3.0, an operation without an operationId of its own, or a keyword that package
// rules does not check.
func Rules(doc *openapi3.T) (*rules.Contract, error) {
	if doc.IsOpenAPI31OrLater() {
		return nil, fmt.Errorf("document is OpenAPI %s, only 3.0 can be enforced", doc.OpenAPI)
	}
	contract := &rules.Contract{KeyHeader: keyHeader(doc)}
	places := make(map[string]string)
	paths := doc.Paths.Map()
	for _, path := range slices.Sorted(maps.Keys(paths)) {
		operations := paths[path].Operations()
		for _, method := range slices.Sorted(maps.Keys(operations)) {
			declared, place := operations[method], method+" "+path
			if declared.OperationID == "" {
				return nil, fmt.Errorf("%s has no operationId", place)
			}
			if other := places[declared.OperationID]; other != "" {
				return nil, fmt.Errorf("operationId %s is used twice: %s, %s", declared.OperationID, other, place)
			}
			places[declared.OperationID] = place
			operation, err := operationOf(paths[path], declared)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", place, err)
			}
			contract.Operations = append(contract.Operations, operation)
		}
	}
	return contract, nil
}

// keyHeader returns the header that the document declares for keys; "" when there is none.
func keyHeader(doc *openapi3.T) string {
	if doc.Components == nil {
		return ""
	}
	for _, name := range slices.Sorted(maps.Keys(doc.Components.SecuritySchemes)) {
		scheme := doc.Components.SecuritySchemes[name].Value
		if scheme != nil && scheme.Type == "apiKey" && scheme.In == openapi3.ParameterInHeader {
			return scheme.Name
		}
	}
	return ""
}

func operationOf(item *openapi3.PathItem, declared *openapi3.Operation) (*rules.Operation, error) {
	operation := &rules.Operation{
		ID: declared.OperationID,
		// Only an explicit `security: []` opens an operation: a document that forgot
		// its global security must not open them all.
		Open:    declared.Security != nil && len(*declared.Security) == 0,
		Streams: streams(declared),
	}
	for _, ref := range slices.Concat(item.Parameters, declared.Parameters) {
		if slices.Contains(item.Parameters, ref) && declared.Parameters.GetByInAndName(ref.Value.In, ref.Value.Name) != nil {
			continue
		}
		parameter, err := parameterOf(ref.Value)
		if err != nil {
			return nil, fmt.Errorf("parameter %s: %w", ref.Value.Name, err)
		}
		operation.Parameters = append(operation.Parameters, parameter)
	}
	if declared.RequestBody == nil {
		return operation, nil
	}
	body := declared.RequestBody.Value
	operation.Body = &rules.Body{Required: body.Required}
	for _, name := range slices.Sorted(maps.Keys(body.Content)) {
		if name != strings.ToLower(name) || strings.ContainsAny(name, "*,; ") {
			return nil, fmt.Errorf("media type %q: must be one type in lower case", name)
		}
		media := rules.Media{Type: name}
		if declared := body.Content[name].Schema; declared != nil && isJSON(name) {
			var err error
			if media.Schema, err = schemaOf(declared.Value, nil); err != nil {
				return nil, fmt.Errorf("%s: %w", name, err)
			}
		}
		operation.Body.Media = append(operation.Body.Media, media)
	}
	return operation, nil
}

func isJSON(media string) bool {
	return media == "application/json" || strings.HasSuffix(media, "+json")
}

// streams reports whether success is an event stream, which may never end.
func streams(declared *openapi3.Operation) bool {
	for status, ref := range declared.Responses.Map() {
		if strings.HasPrefix(status, "2") && ref.Value.Content["text/event-stream"] != nil {
			return true
		}
	}
	return false
}

func parameterOf(declared *openapi3.Parameter) (*rules.Parameter, error) {
	if declared.Schema == nil || declared.AllowEmptyValue || declared.AllowReserved {
		return nil, errors.New("only a schema and no empty value is checked")
	}
	schema, err := schemaOf(declared.Schema.Value, nil)
	if err != nil {
		return nil, err
	}
	of := schema
	switch {
	case schema.Type == rules.TypeArray && declared.In == openapi3.ParameterInQuery && (declared.Explode == nil || *declared.Explode) && schema.Items != nil:
		of = schema.Items
	case declared.In != openapi3.ParameterInPath && declared.In != openapi3.ParameterInQuery && declared.In != openapi3.ParameterInHeader:
		return nil, fmt.Errorf("a parameter in %s is not checked", declared.In)
	}
	if declared.Style != "" && declared.Style != map[bool]string{true: "form", false: "simple"}[declared.In == openapi3.ParameterInQuery] {
		return nil, fmt.Errorf("style %s is not checked", declared.Style)
	}
	switch of.Type {
	case rules.TypeString, rules.TypeInteger, rules.TypeNumber, rules.TypeBoolean:
	default:
		return nil, fmt.Errorf("a parameter of type %q is not checked", of.Type)
	}
	return &rules.Parameter{Name: declared.Name, In: declared.In, Required: declared.Required, Schema: schema}, nil
}

// checked are the keywords that package rules checks, and those that are for readers.
var checked = []string{
	"type", "format", "nullable", "enum", "minimum", "maximum", "minLength", "maxLength", "pattern", "minItems", "maxItems", "items",
	"maxProperties", "properties", "required", "additionalProperties", "oneOf", "allOf",
	"title", "description", "default", "example", "deprecated", "writeOnly", "externalDocs",
}

// schemaOf converts a schema, in place of whose references stands what they refer to. Above are the
// schemas that hold it.
func schemaOf(declared *openapi3.Schema, above []*openapi3.Schema) (*rules.Schema, error) {
	if slices.Contains(above, declared) {
		return nil, errors.New("a schema that holds itself is not checked")
	}
	above = append(slices.Clone(above), declared)
	if err := onlyChecked(declared); err != nil {
		return nil, err
	}
	schema := &rules.Schema{
		Nullable: declared.Nullable, Minimum: bound(declared.Min), Maximum: bound(declared.Max),
		MinLength: int(declared.MinLength), Pattern: declared.Pattern, MinItems: int(declared.MinItems), Required: declared.Required,
	}
	for name, limit := range map[string]struct {
		declared *uint64
		rule     *int
	}{
		"maxLength": {declared.MaxLength, &schema.MaxLength}, "maxItems": {declared.MaxItems, &schema.MaxItems},
		"maxProperties": {declared.MaxProps, &schema.MaxProperties},
	} {
		switch {
		case limit.declared == nil:
		case *limit.declared == 0:
			return nil, fmt.Errorf("%s: 0 is not checked", name)
		default:
			*limit.rule = int(*limit.declared)
		}
	}
	if types := declared.Type.Slice(); len(types) == 1 {
		schema.Type = types[0]
	}
	switch declared.Format {
	case rules.FormatDateTime, rules.FormatInt32, rules.FormatInt64:
		schema.Format = declared.Format
	case "", "binary", "password", "double": // not checked by kin-openapi either; every number is a double
	default:
		return nil, fmt.Errorf("the format %s is not checked", declared.Format)
	}
	if _, err := regexp.Compile(declared.Pattern); err != nil {
		return nil, fmt.Errorf("the pattern %s is not one of Go: %w", declared.Pattern, err)
	}
	if example, ok := declared.Example.(string); ok && declared.Pattern != "" {
		schema.Example = example
	}
	if words, ok := declared.Extensions["x-pattern-words"].(string); ok {
		schema.Words = words
	}
	for _, value := range declared.Enum {
		text, ok := value.(string)
		if !ok {
			return nil, fmt.Errorf("enum: %v is not a string", value)
		}
		schema.Enum = append(schema.Enum, text)
	}
	if has := declared.AdditionalProperties.Has; has != nil {
		schema.Closed = !*has
	}
	// Each of what is inside goes where it belongs.
	var errs []error
	inside := func(ref *openapi3.SchemaRef, place string) *rules.Schema {
		if ref == nil {
			return nil
		}
		converted, err := schemaOf(ref.Value, above)
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", place, err))
		}
		return converted
	}
	schema.Items = inside(declared.Items, "items")
	schema.Others = inside(declared.AdditionalProperties.Schema, "additionalProperties")
	for _, name := range slices.Sorted(maps.Keys(declared.Properties)) {
		schema.Properties = append(schema.Properties, rules.Property{Name: name, Schema: inside(declared.Properties[name], name)})
	}
	for _, ref := range declared.OneOf {
		schema.OneOf = append(schema.OneOf, inside(ref, "oneOf"))
	}
	for _, ref := range declared.AllOf {
		schema.AllOf = append(schema.AllOf, inside(ref, "allOf"))
	}
	return schema, errors.Join(errs...)
}

func bound(declared *float64) rules.Bound {
	if declared == nil {
		return rules.Bound{}
	}
	return rules.Bound{Set: true, Value: *declared}
}

// onlyChecked refuses a keyword that would be silently ignored.
func onlyChecked(declared *openapi3.Schema) error {
	written, err := declared.MarshalYAML() // what is inside stays as it is
	if err != nil {
		return err
	}
	keywords, ok := written.(map[string]any)
	if !ok {
		return fmt.Errorf("the schema is a %T", written)
	}
	for keyword := range keywords {
		if !slices.Contains(checked, keyword) && !strings.HasPrefix(keyword, "x-") {
			return fmt.Errorf("the keyword %s is not checked", keyword)
		}
	}
	return nil
}
