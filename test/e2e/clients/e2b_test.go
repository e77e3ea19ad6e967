package clients_test

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"sandbox.internal/server/config"
	"sandbox.internal/test/e2e/conformance"
)

var update = flag.Bool("update", false, "write the table of docs/e2b.md")

// e2bDirectory returns a directory with the programs of the directory e2b and the packages that
// they use.
func e2bDirectory(t *testing.T) string {
	t.Helper()
	packages, directory := conformance.NodePackages(t, "test/e2e/clients/e2b"), conformance.CopyOf(t, "e2b")
	if err := os.Symlink(packages, filepath.Join(directory, "node_modules")); err != nil {
		t.Fatal(err)
	}
	return directory
}

// e2bService returns a service for clients of E2B, with the hosts of its sandboxes, and the
// variables of these clients.
func e2bService(t *testing.T) (s *service, byURL, byHosts []string) {
	t.Helper()
	// Some clients accept keys of this form alone.
	const key = "e2b_0123456789abcdef0123456789abcdef"
	digest := sha256.Sum256([]byte(key))
	hosts := conformance.NewHosts(t, "sandbox.test")
	s = startWithPython(t, conformance.Plan{
		Server:   fmt.Sprintf("compatibility = [\"e2b\", \"opensandbox\"]\ndefault_image = %q", pythonImage),
		Keys:     []config.Key{{Name: "agent", SHA256: hex.EncodeToString(digest[:]), Role: config.RoleUser}},
		Settings: fmt.Sprintf("[e2b]\ndomain = %q\n[egress]\nimage = %q\n", hosts.Domain, egressImage),
	})
	hosts.Serve(t, s.URL)
	common := []string{"E2B_API_KEY=" + key, "E2B_API_URL=" + s.URL}
	byURL = append(common[:len(common):len(common)], "E2B_SANDBOX_URL="+s.URL)
	byHosts = append(common[:len(common):len(common)], "E2B_DOMAIN="+hosts.Domain, "NODE_EXTRA_CA_CERTS="+hosts.CA,
		"NODE_OPTIONS=--import=./resolve.mjs")
	return s, byURL, byHosts
}

// e2bCalls are what one client did: for each call of it, in order, what came of it.
type e2bCalls []struct{ Call, Result string }

// e2bRun runs a program of the directory e2b with a client, and returns what the client did.
func e2bRun(t *testing.T, environment []string, program, name string) (calls e2bCalls) {
	t.Helper()
	printed := conformance.Tool(t, e2bDirectory(t), environment, "node", program, name)
	before, results, found := strings.Cut(printed, "RESULTS ")
	t.Log(before)
	if !found || json.Unmarshal([]byte(results), &calls) != nil || len(calls) == 0 {
		t.Fatalf("%s printed no results:\n%s", program, printed)
	}
	return calls
}

// TestE2BClients takes sandboxes through their lives with the JavaScript clients of E2B as npm has
// them, and holds docs/e2b.md to what they can do.
func TestE2BClients(t *testing.T) {
	t.Parallel()
	_, byURL, byHosts := e2bService(t)
	clients := []struct {
		name, program string
		environment   []string
	}{
		{"e2b-2.51.0", "main.mjs", byURL}, {"e2b-2.20.1", "main.mjs", byURL}, {"e2b-2.6.4", "main.mjs", byHosts}, {"e2b-1.13.2", "main.mjs", byHosts},
		{"code-interpreter-2.8.0", "code.mjs", byURL}, {"code-interpreter-2.5.0", "code.mjs", byHosts},
	}
	tables := map[string]*e2bTable{"main.mjs": {}, "code.mjs": {}}
	ok := true
	for _, client := range clients {
		ok = t.Run(client.name, func(t *testing.T) {
			tables[client.program].add(client.name, e2bRun(t, client.environment, client.program, client.name))
		}) && ok
	}
	if ok {
		e2bPage(t, "\n"+tables["main.mjs"].String()+"\n"+tables["code.mjs"].String()+"\n")
	}
}

// e2bTable is what several clients did.
type e2bTable struct {
	clients, calls []string
	results        map[[2]string]string // by call and client
}

func (e *e2bTable) add(client string, calls e2bCalls) {
	e.clients = append(e.clients, client)
	for _, one := range calls {
		if !slices.Contains(e.calls, one.Call) {
			e.calls = append(e.calls, one.Call)
		}
		if e.results == nil {
			e.results = map[[2]string]string{}
		}
		e.results[[2]string{one.Call, client}] = one.Result
	}
}

func (e *e2bTable) String() string {
	var out strings.Builder
	fmt.Fprintf(&out, "| call | %s |\n|---%s|\n", strings.Join(e.clients, " | "), strings.Repeat("|---", len(e.clients)))
	for _, call := range e.calls {
		fmt.Fprintf(&out, "| `%s`", call)
		for _, client := range e.clients {
			fmt.Fprintf(&out, " | %s", cmp.Or(e.results[[2]string{call, client}], "the client has no such call"))
		}
		out.WriteString(" |\n")
	}
	return out.String()
}

// e2bPage compares the table of docs/e2b.md, or writes it.
func e2bPage(t *testing.T, table string) {
	t.Helper()
	const (
		path   = "../../../docs/e2b.md"
		begins = "<!-- What TestE2BClients saw: go test ./test/e2e/clients -run TestE2BClients -update -->\n"
		ends   = "<!-- End of what TestE2BClients saw. -->\n"
	)
	page, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, begun := strings.Cut(string(page), begins)
	old, after, ended := strings.Cut(rest, ends)
	if !begun || !ended {
		t.Fatalf("docs/e2b.md has no place between %q and %q", begins, ends)
	}
	switch {
	case *update:
		if err := os.WriteFile(path, []byte(before+begins+table+ends+after), 0o644); err != nil {
			t.Fatal(err)
		}
	case old != table:
		t.Errorf("docs/e2b.md is not what the clients did; -update writes it:\n%s", table)
	}
}

// TestE2BHosts reaches the ports of sandboxes by their hosts.
func TestE2BHosts(t *testing.T) {
	t.Parallel()
	_, _, byHosts := e2bService(t)
	for _, name := range []string{"e2b-2.51.0", "e2b-2.6.4"} {
		t.Run(name, func(t *testing.T) {
			t.Log(conformance.Tool(t, e2bDirectory(t), byHosts, "node", "hosts.mjs", name))
		})
	}
}

// TestE2BFrameworks uses sandboxes through frameworks above E2B's client, as npm has them.
func TestE2BFrameworks(t *testing.T) {
	t.Parallel()
	_, byURL, _ := e2bService(t)
	for _, program := range []string{"computesdk.mjs"} {
		t.Run(program, func(t *testing.T) {
			t.Log(conformance.Tool(t, e2bDirectory(t), byURL, "node", program))
		})
	}
}
