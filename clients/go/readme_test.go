package sandbox_test

import (
	"os"
	"reflect"
	"regexp"
	"slices"
	"testing"

	sandbox "sandbox.internal/clients/go"
)

// TestReadmeHasEveryCall: the table of the README has a row for each method, and no other.
func TestReadmeHasEveryCall(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("README.md")
	check(t, err)
	var rows, there []string
	for _, match := range regexp.MustCompile("(?m)^\\| `([\\w.]+)\\(").FindAllStringSubmatch(string(text), -1) {
		rows = append(rows, match[1])
	}
	for path, kind := range map[string]reflect.Type{
		"client": reflect.TypeFor[*sandbox.Client](), "client.Images": reflect.TypeFor[sandbox.Images](),
		"client.Keys": reflect.TypeFor[sandbox.Keys](), "box": reflect.TypeFor[*sandbox.Sandbox](),
		"box.Commands": reflect.TypeFor[sandbox.Commands](), "command": reflect.TypeFor[*sandbox.Command](),
		"stdin": reflect.TypeFor[*sandbox.Stdin](), "box.Code": reflect.TypeFor[sandbox.Code](),
		"box.Files": reflect.TypeFor[sandbox.Files](), "box.Terminals": reflect.TypeFor[sandbox.Terminals](),
		"cell": reflect.TypeFor[*sandbox.Cell](), "terminal": reflect.TypeFor[*sandbox.Terminal](), "box.Network": reflect.TypeFor[sandbox.Network](),
	} {
		for i := range kind.NumMethod() {
			there = append(there, path+"."+kind.Method(i).Name)
		}
	}
	slices.Sort(rows)
	slices.Sort(there)
	if !slices.Equal(rows, there) {
		t.Errorf("the README has rows for\n%q, and the methods are\n%q", rows, there)
	}
}
