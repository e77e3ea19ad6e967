package config_test

import (
	"errors"
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"sandbox.internal/server/config"
)

var update = flag.Bool("update", false, "write the tables of docs/configuration.md")

const (
	referencePage  = "../../docs/configuration.md"
	referenceBegin = "<!-- Generated from server/config by: go test ./server/config -run TestReference -update -->\n"
	referenceEnd   = "<!-- End of what is generated. -->\n"
)

// dependent are the defaults that are no constants, as the page writes them.
var dependent = map[string]string{
	"server.data_dir":    "`/var/lib/sandbox-server` for root, else `$XDG_STATE_HOME/sandbox-server` or `~/.local/state/sandbox-server`",
	"server.signing_key": "`signing.key` in `server.data_dir`, made at the first start",
}

// TestReference compares the tables of docs/configuration.md with the structs of this package:
// keys, types, defaults, and as the rule the first paragraph of each field's comment.
func TestReference(t *testing.T) {
	page, err := os.ReadFile(referencePage)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, begins := strings.Cut(string(page), referenceBegin)
	old, after, ends := strings.Cut(rest, referenceEnd)
	if !begins || !ends {
		t.Fatalf("docs/configuration.md has no place between %q and %q", referenceBegin,
			referenceEnd)
	}
	tables := reference(t)
	if *update {
		if err := os.WriteFile(referencePage,
			[]byte(before+referenceBegin+tables+referenceEnd+after), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if old != tables {
		t.Errorf(
			"docs/configuration.md is not what the structs say: go test ./server/config -run TestReference -update\n%s", tables)
	}
}

// reference returns a heading and a table for each section of the file.
func reference(t *testing.T) string {
	t.Helper()
	r := &referenceWriter{t: t, comments: fieldComments(t), required: requiredKeys(t)}
	sections := reflect.ValueOf(config.Default(home))
	for i := range sections.NumField() {
		name := sections.Type().Field(i).Tag.Get("toml")
		if name == "-" {
			continue
		}
		heading, section := "["+name+"]", sections.Field(i)
		if section.Kind() == reflect.Slice { // an array of tables
			heading, section = "["+heading+"]", reflect.New(section.Type().Elem()).Elem()
		}
		fmt.Fprintf(&r.out, "\n## %s\n\n| key | type | default | rule |\n|---|---|---|---|\n", heading)
		r.table(name, section)
	}
	r.out.WriteString("\n")
	return r.out.String()
}

type referenceWriter struct {
	t        *testing.T
	comments map[string]string // by type and field, such as Server.Host
	required map[string]bool
	out      strings.Builder
}

// table writes a row for each key below path; entries of arrays of tables have the path of the
// array.
func (r *referenceWriter) table(path string, section reflect.Value) {
	for i := range section.NumField() {
		field := section.Type().Field(i)
		key, value := path+"."+field.Tag.Get("toml"), section.Field(i)
		switch kind := field.Type.Kind(); {
		case kind == reflect.Struct:
			r.table(key, value)
		case (kind == reflect.Pointer || kind == reflect.Slice) &&
			field.Type.Elem().Kind() == reflect.Struct:
			r.table(key, reflect.New(field.Type.Elem()).Elem())
		default:
			r.row(key, section.Type().Name(), field, value)
		}
	}
}

func (r *referenceWriter) row(key, structure string, field reflect.StructField,
	value reflect.Value) {
	r.t.Helper()
	comment := r.comments[structure+"."+field.Name]
	rule, named := strings.CutPrefix(comment, field.Name+" ")
	if !named {
		r.t.Errorf("the comment of %s.%s does not begin with its name: %q", structure, field.Name,
			comment)
	}
	for _, word := range []string{"is ", "are ", "the "} {
		rule = strings.TrimPrefix(rule, word)
	}
	rule = regexp.MustCompile(`\b(?:`+strings.ReplaceAll(strings.Join(config.Keys(), "|"), ".",
		`\.`)+`)\b`).ReplaceAllString(rule, "`$0`")
	rule = regexp.MustCompile(`docs/(\w+\.md)`).ReplaceAllString(rule, "[$1]($1)")
	rule = strings.NewReplacer("|", `\|`, "*", `\*`).Replace(rule)
	fmt.Fprintf(&r.out, "| `%s` | %s | %s | %s |\n", key, typeName(field.Type),
		r.fallback(key, value), strings.TrimSuffix(rule, "."))
}

// fallback is the default as the page writes it.
func (r *referenceWriter) fallback(key string, value reflect.Value) string {
	if text, ok := dependent[key]; ok {
		return text
	}
	switch {
	case r.required[key]:
		return "required"
	case value.Kind() == reflect.Slice:
		items := make([]string, value.Len())
		for i := range items {
			items[i] = fmt.Sprintf("`%s`", value.Index(i))
		}
		if len(items) == 0 {
			return "`[]`"
		}
		return strings.Join(items, " ")
	case value.Kind() == reflect.Pointer, value.Kind() == reflect.String && value.Len() == 0:
		return "unset"
	case value.Kind() == reflect.String:
		return fmt.Sprintf("`%q`", value)
	}
	return fmt.Sprintf("`%v`", value)
}

func typeName(field reflect.Type) string {
	switch {
	case field == reflect.TypeFor[config.Seconds]():
		return "seconds"
	case field.Kind() == reflect.Slice:
		return "list of strings"
	case field.Kind() == reflect.Bool:
		return "boolean"
	case field.Kind() == reflect.String:
		return "string"
	}
	return "integer"
}

// requiredKeys returns the keys that the rules ask for in a file that sets nothing but one empty
// entry of each array of tables.
func requiredKeys(t *testing.T) map[string]bool {
	t.Helper()
	c := config.Default(home)
	c.Server.Keys = []config.Key{{RateLimit: &config.RateLimit{}}}
	c.Kubernetes.Tolerations = []config.Toleration{{}}
	c.Runtime.Classes = []config.RuntimeClass{{}}
	c.Webhooks = []config.Webhook{{}}
	joined, ok := c.Validate().(interface{ Unwrap() []error })
	if !ok {
		t.Fatal("nothing is required")
	}
	required := map[string]bool{}
	for _, err := range joined.Unwrap() {
		var problem *config.Problem
		if errors.As(err, &problem) && strings.HasPrefix(problem.Err.Error(), "is required") {
			required[strings.ReplaceAll(problem.Key, "[0]", "")] = true
		}
	}
	want := []string{"runtime.classes.handler", "runtime.classes.name", "runtime.execd_image",
		"runtime.type", "server.keys.name", "server.keys.role", "server.keys.sha256", "webhooks.url"}
	if got := slices.Sorted(maps.Keys(required)); !slices.Equal(got, want) {
		t.Errorf("required are %q, want %q", got, want)
	}
	return required
}

// fieldComments returns the first paragraph of the comment of each field of this package's structs,
// in one line.
func fieldComments(t *testing.T) map[string]string {
	t.Helper()
	files, err := os.ReadDir(".")
	if err != nil {
		t.Fatal(err)
	}
	comments := map[string]string{}
	for _, file := range files {
		if !strings.HasSuffix(file.Name(), ".go") || strings.HasSuffix(file.Name(), "_test.go") {
			continue
		}
		parsed, err := parser.ParseFile(token.NewFileSet(), file.Name(), nil, parser.ParseComments)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(parsed, func(node ast.Node) bool {
			declared, isType := node.(*ast.TypeSpec)
			if !isType {
				return true
			}
			if structure, isStruct := declared.Type.(*ast.StructType); isStruct {
				for _, field := range structure.Fields.List {
					paragraph, _, _ := strings.Cut(field.Doc.Text(), "\n\n")
					for _, name := range field.Names {
						comments[declared.Name.Name+"."+
							name.Name] = strings.Join(strings.Fields(paragraph), " ")
					}
				}
			}
			return false
		})
	}
	return comments
}
