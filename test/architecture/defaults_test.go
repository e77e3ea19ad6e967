package architecture_test

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/pelletier/go-toml/v2"

	egress "sandbox.internal/egress/config"
	execd "sandbox.internal/execd/config"
	"sandbox.internal/execd/files"
	"sandbox.internal/openapi/document"
	"sandbox.internal/server/config"
)

// TestDocumentedDefaults compares every default that is documented with the code's: of the
// contracts, of the documents that the project implements, and of the pages in docs/.
func TestDocumentedDefaults(t *testing.T) {
	atRoot(t)
	t.Run("contracts", testContractDefaults)
	t.Run("execd", func(t *testing.T) {
		code := usage(
			t,
			func(out io.Writer) error { _, err := execd.Parse([]string{"--help"}, none, out); return err },
		)
		page := settingsOf(t, "docs/execd.md")
		compareDefaults(t, "docs/execd.md", page, code)
		// The execution document's table "Daemon settings"; of the two defaults that it has for the
		// grace, the flag table's.
		for name, want := range map[string]string{
			"--jupyter-host JUPYTER_HOST": "", "--jupyter-token JUPYTER_TOKEN": "", "--port ": "44772", "--log-level ": "6",
			"--access-token EXECD_ACCESS_TOKEN": "", "--graceful-shutdown-timeout EXECD_API_GRACE_SHUTDOWN": "3s", " EXECD_LOG_FILE": "",
		} {
			if got, ok := code[name]; !ok || got != want {
				t.Errorf(
					"%s: the document's default is %q, the code's %q (there: %v)",
					name,
					want,
					got,
					ok,
				)
			}
		}
		if page[" EXECD_LOG_FILE"] != "" ||
			!strings.Contains(
				read(t, "docs/execd.md"),
				"| | `EXECD_LOG_FILE` | standard output |",
			) {
			t.Error("docs/execd.md does not say where the log goes without EXECD_LOG_FILE")
		}
	})
	t.Run("egress", func(t *testing.T) {
		code := usage(
			t,
			func(out io.Writer) error { _, err := egress.Parse([]string{"--help"}, none, out); return err },
		)
		compareDefaults(t, "docs/network.md", settingsOf(t, "docs/network.md"), code)
	})
	t.Run("service", testServiceDefaults)
}

func none(string) string { return "" }

func read(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// testContractDefaults: what the code does for a value that is left out. A boolean's zero value is
// its default.
func testContractDefaults(t *testing.T) {
	code := map[string]any{
		"execd searchFiles pattern": files.DefaultPattern, "execd listDirectory depth": files.DefaultDepth, "execd MetricsFormat": "json",
		"lifecycle listSandboxes page":     constant(t, "server/api/convert.go", "defaultPage"),
		"lifecycle listSandboxes pageSize": constant(t, "server/api/convert.go", "defaultPageSize"),
		"lifecycle listKeys page":          constant(t, "server/api/convert.go", "defaultPage"),
		"lifecycle listKeys pageSize":      constant(t, "server/api/convert.go", "defaultPageSize"),

		"lifecycle listSnapshots page":            constant(t, "server/api/convert.go", "defaultPage"),
		"lifecycle listSnapshots pageSize":        constant(t, "server/api/convert.go", "defaultPageSize"),
		"lifecycle listSandboxSnapshots page":     constant(t, "server/api/convert.go", "defaultPage"),
		"lifecycle listSandboxSnapshots pageSize": constant(t, "server/api/convert.go", "defaultPageSize"),
		"lifecycle getSnapshotDiff limit":         constant(t, "server/api/snapshotdiff.go", "defaultDiff"),
		"lifecycle ForkRequest count":             constant(t, "server/api/snapshots.go", "defaultForks"),

		"lifecycle RotateKeyRequest graceSeconds": 0, // the zero value of a field that is left out
	}
	for name, load := range map[string]func() (*openapi3.T, error){
		"lifecycle": document.LoadLifecycle, "execd": document.LoadExecd, "egress": document.LoadEgress,
	} {
		document, err := load()
		if err != nil {
			t.Fatal(err)
		}
		for place, value := range contractDefaults(document) {
			place = name + " " + place
			want, ok := code[place]
			if _, boolean := value.(bool); boolean && !ok {
				want = false
			}
			if fmt.Sprint(value) != fmt.Sprint(want) {
				t.Errorf("%s: the contract's default is %v, the code's %v", place, value, want)
			}
			delete(code, place)
		}
	}
	for place := range code {
		t.Errorf("%s: the contract has no default", place)
	}
}

// contractDefaults returns the defaults of parameters, by operation and name, and of schemas and
// their properties.
func contractDefaults(document *openapi3.T) map[string]any {
	found := map[string]any{}
	for _, item := range document.Paths.Map() {
		for _, operation := range item.Operations() {
			for _, parameter := range operation.Parameters {
				if schema := parameter.Value.Schema; schema.Ref == "" &&
					schema.Value.Default != nil {
					found[operation.OperationID+" "+parameter.Value.Name] = schema.Value.Default
				}
			}
		}
	}
	for name, schema := range document.Components.Schemas {
		if schema.Value.Default != nil {
			found[name] = schema.Value.Default
		}
		for property, schema := range schema.Value.Properties {
			if schema.Ref == "" && schema.Value.Default != nil {
				found[name+" "+property] = schema.Value.Default
			}
		}
	}
	return found
}

// constant returns the value of a constant of a package that tests of other packages cannot see.
func constant(t *testing.T, file, name string) string {
	t.Helper()
	match := regexp.MustCompile(`(?m)^\s*(?:const )?` + name + `\s*=\s*(\S+)$`).
		FindStringSubmatch(read(t, file))
	if match == nil {
		t.Fatalf("%s has no constant %s", file, name)
	}
	return match[1]
}

// usage returns the defaults that a program's --help prints, by flag and variable.
func usage(t *testing.T, help func(io.Writer) error) map[string]string {
	t.Helper()
	var out bytes.Buffer
	if err := help(&out); !errors.Is(err, flag.ErrHelp) {
		t.Fatal(err)
	}
	rows := map[string]string{}
	for line := range strings.Lines(out.String()) {
		cells := regexp.MustCompile(`\s{2,}`).Split(strings.TrimSpace(line), 4)
		if len(cells) != 4 || cells[0] == "FLAG" {
			continue
		}
		for i, cell := range cells {
			if cell == "-" {
				cells[i] = ""
			}
		}
		rows[cells[0]+" "+cells[1]] = cells[2]
	}
	return rows
}

// settingsOf returns the defaults of a page's table of flags and variables.
func settingsOf(t *testing.T, page string) map[string]string {
	t.Helper()
	// What the pages say instead of an empty default.
	words := map[string]string{
		"standard output": "",
		"every interface": "",
		"empty":           "",
		"those of `/etc/resolv.conf` at the first start": "",
	}
	rows := map[string]string{}
	for _, cells := range tables(read(t, page), "| flag | variable | default | meaning |") {
		value, ok := words[cells[2]]
		if !ok {
			value = strings.Trim(cells[2], "`")
		}
		rows[strings.Trim(cells[0], "`")+" "+strings.Trim(cells[1], "`")] = value
	}
	return rows
}

// tables returns the cells of the rows of all tables that have this header.
func tables(page, header string) [][]string {
	var rows [][]string
	inside := false
	for line := range strings.Lines(page) {
		line = strings.TrimSpace(line)
		switch {
		case line == header:
			inside = true
		case !strings.HasPrefix(line, "|"):
			inside = false
		case inside && !strings.HasPrefix(line, "|---"):
			cells := strings.Split(strings.ReplaceAll(strings.Trim(line, "|"), `\|`, "\x00"), "|")
			if strings.HasPrefix(line, "| |") {
				cells = strings.Split(
					strings.ReplaceAll(strings.TrimSuffix(line[1:], "|"), `\|`, "\x00"),
					"|",
				)
			}
			for i := range cells {
				cells[i] = strings.TrimSpace(cells[i])
			}
			rows = append(rows, cells)
		}
	}
	return rows
}

func compareDefaults(t *testing.T, page string, documented, code map[string]string) {
	t.Helper()
	if len(documented) < 5 {
		t.Errorf("only %d rows were found in %s", len(documented), page)
	}
	for _, name := range slices.Sorted(maps.Keys(documented)) {
		got, ok := code[name]
		if !ok || got != documented[name] {
			t.Errorf(
				"%s: %s: the default is documented as %q, the code's is %q (there: %v)",
				page,
				name,
				documented[name],
				got,
				ok,
			)
		}
	}
	for name := range code {
		if _, ok := documented[name]; !ok {
			t.Errorf("%s has no row for %s", page, name)
		}
	}
}

// testServiceDefaults compares docs/configuration.md with the configuration of a file that sets
// nothing. What the lifecycle document has as defaults is checked by the tests of server/config.
func testServiceDefaults(t *testing.T) {
	page := read(t, "docs/configuration.md")
	home := func(name string) string { return map[string]string{"HOME": "/home/ada"}[name] }
	defaults := config.Default(home)
	path, err := config.Path("", home)
	if err != nil {
		t.Fatal(err)
	}
	var printed bytes.Buffer
	if err := config.Print(&printed, defaults); err != nil {
		t.Fatal(err)
	}
	var tree map[string]any
	if err := toml.Unmarshal(printed.Bytes(), &tree); err != nil {
		t.Fatal(err)
	}
	code := map[string]any{}
	flatten("", tree, code)
	rows := 0
	for _, cells := range tables(page, "| key | type | default | rule |") {
		key, documented := strings.Trim(cells[0], "`"), cells[2]
		if strings.HasPrefix(key, "server.keys.") ||
			strings.HasPrefix(key, "runtime.classes.") ||
			strings.HasPrefix(key, "local.mirrors.") ||
			strings.HasPrefix(key, "e2b.templates.") ||
			strings.HasPrefix(key, "kubernetes.tolerations.") ||
			strings.HasPrefix(key, "webhooks.") {
			continue // a default of each entry, of which there is none
		}
		rows++
		if want := documentedValue(t, key, documented); !reflect.DeepEqual(code[key], want) {
			// Where the default depends on something, the page names each value.
			if text, ok := code[key].(string); !ok || text == "" ||
				!strings.Contains(documented, "`"+strings.Replace(text, "/home/ada", "~", 1)+"`") {
				t.Errorf(
					"%s: the default is documented as %s (%#v), the code's is %#v",
					key,
					documented,
					want,
					code[key],
				)
			}
		}
	}
	if rows < 25 {
		t.Errorf("only %d keys were found", rows)
	}
	environment := map[string]string{
		"SANDBOX_CONFIG_PATH": strings.Replace(
			path,
			"/home/ada",
			"~",
			1,
		), "DOCKER_HOST": defaults.Environment.DockerHost,
		"PENDING_FAILURE_TTL": fmt.Sprint(defaults.Environment.PendingFailureTTL),
	}
	for _, cells := range tables(page, "| variable | default | rule |") {
		name := strings.Trim(cells[0], "`")
		if got := strings.Trim(cells[1], "`"); got != environment[name] {
			t.Errorf(
				"%s: the default is documented as %q, the code's is %q",
				name,
				got,
				environment[name],
			)
		}
		delete(environment, name)
	}
	if len(environment) > 0 {
		t.Errorf("docs/configuration.md has no row for %v", environment)
	}
}

// documentedValue reads the cell of a default: a TOML value, a list of words, or what stands for
// nothing.
func documentedValue(t *testing.T, key, cell string) any {
	t.Helper()
	if cell == "unset" || cell == "required" || key == "server.signing_key" {
		return ""
	}
	var value struct{ V any }
	if err := toml.Unmarshal([]byte("V = "+strings.Trim(cell, "`")), &value); err == nil {
		return value.V
	}
	var words []any
	for _, match := range regexp.MustCompile("`([^`]+)`").FindAllStringSubmatch(cell, -1) {
		words = append(words, match[1])
	}
	return words
}

func flatten(prefix string, table, into map[string]any) {
	for name, value := range table {
		if inner, ok := value.(map[string]any); ok {
			flatten(prefix+name+".", inner, into)
			continue
		}
		into[prefix+name] = value
	}
}
