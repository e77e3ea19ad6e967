package document_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/getkin/kin-openapi/openapi3"

	"sandbox.internal/openapi/document"
	"sandbox.internal/openapi/rules"
)

// contracts are those of the services, and the one that has something of everything.
func contracts(t testing.TB) map[string]*openapi3.T {
	t.Helper()
	all := make(map[string]*openapi3.T)
	for name, load := range map[string]func() (*openapi3.T, error){
		"lifecycle": document.LoadLifecycle, "execd": document.LoadExecd, "egress": document.LoadEgress,
		"widgets": func() (*openapi3.T, error) {
			return openapi3.NewLoader().LoadFromFile("../serve/testdata/widgets.yaml")
		},
	} {
		doc, err := load()
		if err != nil {
			t.Fatal(err)
		}
		all[name] = doc
	}
	return all
}

// TestRulesAreTheContracts: what services go by is what the contracts say. gen/ holds the files
// against what is made now; this holds what is read from them.
func TestRulesAreTheContracts(t *testing.T) {
	t.Parallel()
	docs := contracts(t)
	for name, got := range map[string]*rules.Contract{
		"lifecycle": rules.Lifecycle(), "execd": rules.Execd(), "egress": rules.Egress(),
	} {
		want, err := document.Rules(docs[name])
		if err != nil {
			t.Fatal(err)
		}
		gotText, err := json.Marshal(got)
		if err != nil {
			t.Fatal(err)
		}
		wantText, err := json.Marshal(want)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(gotText, wantText) || len(got.Operations) == 0 {
			t.Errorf("%s: the rules are %s, want %s", name, gotText, wantText)
		}
		count := 0
		for path, item := range docs[name].Paths.Map() {
			for method, declared := range item.Operations() {
				count++
				i := slices.IndexFunc(got.Operations, func(o *rules.Operation) bool { return o.ID == declared.OperationID })
				if i < 0 {
					t.Fatalf("%s: %s %s has no rules", name, method, path)
				}
				op := got.Operations[i]
				if (op.Body == nil) != (declared.RequestBody == nil) || len(op.Parameters) < len(declared.Parameters) || op.Open != (declared.Security != nil) {
					t.Errorf("%s: the rules of %s are %+v", name, op.ID, op)
				}
			}
		}
		if count != len(got.Operations) {
			t.Errorf("%s: %d operations have rules, %d are in the contract", name, len(got.Operations), count)
		}
	}
}

func TestRulesRefuseWhatIsNotChecked(t *testing.T) {
	t.Parallel()
	one := uint64(1)
	for want, spoil := range map[string]func(*openapi3.Schema){
		"minProperties is not checked":        func(s *openapi3.Schema) { s.MinProps = 1 },
		"uniqueItems is not checked":          func(s *openapi3.Schema) { s.UniqueItems = true },
		"anyOf is not checked":                func(s *openapi3.Schema) { s.AnyOf = s.Properties["limits"].Value.AllOf },
		"format uuid is not checked":          func(s *openapi3.Schema) { s.Format = "uuid" },
		"holds itself":                        func(s *openapi3.Schema) { s.Properties["image"].Value = s },
		"readOnly is not checked":             func(s *openapi3.Schema) { s.Properties["note"].Value.ReadOnly = true },
		"is not a string":                     func(s *openapi3.Schema) { s.Properties["mode"].Value.Enum = []any{1} },
		"maxLength: 0 is not checked":         func(s *openapi3.Schema) { s.Properties["note"].Value.MaxLength = new(uint64) },
		"is not one of Go":                    func(s *openapi3.Schema) { s.Properties["size"].Value.Pattern = "(?=x)" },
		"image: minProperties is not checked": func(s *openapi3.Schema) { s.Properties["image"].Value.MinProps = one },
	} {
		doc := contracts(t)["widgets"]
		spoil(doc.Components.Schemas["Widget"].Value)
		if _, err := document.Rules(doc); err == nil || !strings.Contains(strings.ReplaceAll(err.Error(), "the keyword ", ""), want) {
			t.Errorf("%q: the error is %v", want, err)
		}
	}
}

// checks are the bodies and parameters of all contracts, in both forms.
type check struct {
	name   string
	body   *openapi3.Schema
	schema *rules.Schema

	param *openapi3.Parameter
	text  *rules.Parameter
}

func checks(t testing.TB) []check {
	t.Helper()
	var all []check
	for name, doc := range contracts(t) {
		contract, err := document.Rules(doc)
		if err != nil {
			t.Fatal(err)
		}
		for path, item := range doc.Paths.Map() {
			for method, declared := range item.Operations() {
				op := contract.Operations[slices.IndexFunc(contract.Operations, func(o *rules.Operation) bool { return o.ID == declared.OperationID })]
				at := fmt.Sprintf("%s %s %s", name, method, path)
				for _, param := range op.Parameters {
					own := declared.Parameters.GetByInAndName(param.In, param.Name)
					if own == nil {
						own = item.Parameters.GetByInAndName(param.In, param.Name)
					}
					all = append(all, check{name: at + " " + param.Name, param: own, text: param})
				}
				if op.Body == nil {
					continue
				}
				for _, media := range op.Body.Media {
					if media.Schema != nil {
						all = append(all, check{name: at, body: declared.RequestBody.Value.Content[media.Type].Schema.Value, schema: media.Schema})
					}
				}
			}
		}
	}
	slices.SortFunc(all, func(a, b check) int { return strings.Compare(a.name, b.name) })
	return all
}

func said(violation *rules.Violation) string {
	if violation == nil {
		return ""
	}
	return violation.String()
}

var example = regexp.MustCompile(`; an example is ".*"$`)

// differ reports whether the rules decide otherwise than kin-openapi, or in other words than they
// mean to: they show an example of a pattern, name no type of Go, and refuse a date that no
// calendar has.
func differ(got, want string) bool {
	want = strings.Replace(want, "cannot convert json.Number to float64", "number is too large", 1)
	return example.ReplaceAllString(got, "") != want && !(want == "" && strings.HasSuffix(got, "must be a valid date-time"))
}

// texts is what a client may write for a parameter.
func texts(r *rand.Rand) string {
	few := []string{
		"", "0", "1", "-1", "+7", "007", "1.5", "1e3", "99999999999999999999", "-99999999999999999999", "true", "false", "T", "maybe", "x", "ok", "é",
		"deny", "allow", "json", "Running", "Paused", "a:b", "a=b", "/a", "2026-01-02T15:04:05Z", "9223372036854775807", "0x10", " 1", "NaN",
		strings.Repeat("x", 64), strings.Repeat("x", 65), strings.Repeat("é", 128), strings.Repeat("y", 129), strings.Repeat("z", 300), "123456789012345678", "1234567890123456789",
	}
	return few[r.IntN(len(few))]
}

// value makes a value that often is what the schema wants, and somewhere in it often is not.
func value(r *rand.Rand, schema *rules.Schema, depth int) any {
	if r.IntN(12) == 0 || schema == nil || depth > 6 {
		anything := []any{
			nil, true, false, "", "x", texts(r), json.Number("0"), json.Number("-1"), json.Number("1.5"), json.Number("60"), json.Number("1e400"),
			json.Number("9223372036854775808"), json.Number("9223372036854775807"), json.Number("-9223372036854775809"), json.Number("2147483648"), json.Number("1e3"),
			[]any{}, []any{"a"}, []any{nil}, map[string]any{}, map[string]any{"a": "b"}, map[string]any{"x": nil},
		}
		return anything[r.IntN(len(anything))]
	}
	if n := len(schema.OneOf); n > 0 {
		return value(r, schema.OneOf[r.IntN(n)], depth+1)
	}
	if n := len(schema.AllOf); n > 0 {
		return value(r, schema.AllOf[r.IntN(n)], depth+1)
	}
	if n := len(schema.Enum); n > 0 {
		return schema.Enum[r.IntN(n)]
	}
	switch schema.Type {
	case rules.TypeBoolean:
		return r.IntN(2) == 0
	case rules.TypeInteger, rules.TypeNumber:
		n := 1.0
		if schema.Minimum.Set {
			n = schema.Minimum.Value
		}
		if schema.Maximum.Set && r.IntN(2) == 0 {
			n = schema.Maximum.Value
		}
		return json.Number(fmt.Sprint(int64(n) + int64(r.IntN(5)) - 2))
	case rules.TypeString:
		samples := []string{"500m", "1Gi", "2", "2026-01-02T15:04:05.5+01:00", "2026-13-02T15:04:05Z", strings.Repeat("v", max(schema.MinLength, 1)), texts(r)}
		if schema.MaxLength > 0 {
			samples = append(samples, strings.Repeat("w", schema.MaxLength+r.IntN(2)))
		}
		return samples[r.IntN(len(samples))]
	case rules.TypeArray:
		n := schema.MinItems + r.IntN(3)
		if schema.MaxItems > 0 && r.IntN(400) == 0 {
			n = schema.MaxItems + r.IntN(2)
		}
		items := make([]any, n)
		for i := range items {
			if items[i] = items[0]; i < 4 {
				items[i] = value(r, schema.Items, depth+1)
			}
		}
		return items
	}
	object := make(map[string]any)
	for _, property := range schema.Properties {
		if slices.Contains(schema.Required, property.Name) && r.IntN(10) > 0 || r.IntN(2) == 0 {
			object[property.Name] = value(r, property.Schema, depth+1)
		}
	}
	for range r.IntN(4) {
		switch {
		case r.IntN(4) == 0:
			object[[]string{"unknown", "Timeout", "", "a/b", "\xff", strings.Repeat("n", 200)}[r.IntN(6)]] = value(r, nil, depth+1)
		case schema.Others != nil:
			object[texts(r)] = value(r, schema.Others, depth+1)
		}
	}
	return object
}

// TestRulesDecideAsKinOpenAPI compares package rules with a library that implements all of OpenAPI:
// the same requests are refused, in the same words.
func TestRulesDecideAsKinOpenAPI(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(1, 2))
	refused, accepted := 0, 0
	for _, c := range checks(t) {
		for range 4000 {
			var got, want, sample string
			if c.schema != nil {
				v := value(r, c.schema, 0)
				sample = fmt.Sprintf("%.500v", v)
				got, want = said(c.schema.Check(v)), oracleOfBody(c.body, v)
			} else {
				var values []string
				for range r.IntN(3) {
					values = append(values, texts(r))
				}
				if len(values) > 1 && c.text.Schema.Type != rules.TypeArray || len(values) == 1 && values[0] == "" && c.text.In == rules.InPath {
					continue // package serve takes care of these
				}
				sample = fmt.Sprintf("%q", values)
				got, want = said(c.text.CheckText(values)), oracleOfParameter(c.param, values)
			}
			if differ(got, want) {
				t.Errorf("%s: %s: the rules say %q, kin-openapi %q", c.name, sample, got, want)
				break
			}
			if got == "" {
				accepted++
			} else {
				refused++
			}
		}
	}
	if accepted < 10_000 || refused < 10_000 {
		t.Errorf("%d were accepted and %d refused: that compares too little", accepted, refused)
	}
}

// FuzzRulesDecideAsKinOpenAPI compares both with any JSON.
func FuzzRulesDecideAsKinOpenAPI(f *testing.F) {
	all := checks(f)
	for _, body := range []string{`{"command":"ls","timeout":-1}`, `[{"src":"/a"}]`, `{"/a":{"mode":"755"}}`, `{"image":{"uri":""},"limits":{"cpu":"1"}}`, `null`} {
		for i := range all {
			f.Add(uint16(i), body)
		}
	}
	f.Fuzz(func(t *testing.T, which uint16, text string) {
		c := all[int(which)%len(all)]
		if c.schema == nil {
			if text == "" && c.text.In == rules.InPath {
				return
			}
			if got, want := said(c.text.CheckText([]string{text})), oracleOfParameter(c.param, []string{text}); differ(got, want) {
				t.Errorf("%s: %q: the rules say %q, kin-openapi %q", c.name, text, got, want)
			}
			return
		}
		decoder := json.NewDecoder(strings.NewReader(text))
		decoder.UseNumber()
		var v any
		if decoder.Decode(&v) != nil {
			return
		}
		if got, want := said(c.schema.Check(v)), oracleOfBody(c.body, v); differ(got, want) {
			t.Errorf("%s: %s: the rules say %q, kin-openapi %q", c.name, text, got, want)
		}
	})
}
