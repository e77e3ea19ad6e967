package clients_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	sandbox "sandbox.internal/clients/go"
	"sandbox.internal/test/e2e/conformance"
)

// TestOneSetOfDefaults creates a sandbox with nothing but what is needed through each surface: the
// records are the same.
func TestOneSetOfDefaults(t *testing.T) {
	t.Parallel()
	python, pythonDirectory := pythonHere(t), conformance.CopyOf(t, pythonClient)
	typescript, console := buildTypeScript(t), consoleSources(t)
	idle := []any{"/opt/sandbox/execd-init", "idle"}
	for name, c := range map[string]struct {
		server, settings string
		image            string // that the user names
		life             time.Duration
		limits           map[string]any
	}{
		"of the configuration": {
			server:   fmt.Sprintf("default_image = %q\ndefault_timeout = 900", busyboxImage),
			settings: "[server.limits]\ndefault_cpu = \"500m\"\ndefault_memory = \"256Mi\"\n",
			life:     900 * time.Second,
			limits:   map[string]any{"cpuMillis": 500., "memoryBytes": float64(256 << 20)},
		},
		"of the contract": {image: busyboxImage, life: time.Hour},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := start(t, conformance.Plan{Server: c.server, Settings: c.settings})
			environment := append(s.Variables(), "PYTHONPATH="+filepath.Join(pythonDirectory, "src"))
			var words []string // what the user names, for a command line
			if c.image != "" {
				words = []string{c.image}
			}
			quoted := strings.Join(quotedAll(words), ", ")
			for surface, create := range map[string]func() string{
				"Go":  func() string { return createdInGo(t, s, c.image) },
				"CLI": func() string { return newCommandLine(t, s.URL).must(t, append([]string{"create", "-q"}, words...)...) },
				"MCP": func() string { return createdOverMCP(t, s, c.image) },
				"Python": func() string {
					return conformance.Tool(t, pythonDirectory, environment, python, "-c",
						"from sandboxes import Client\nwith Client() as client: print(client.create("+quoted+").id)")
				},
				"asyncio": func() string {
					return conformance.Tool(t, pythonDirectory, environment, python, "-c", "import asyncio\nfrom sandboxes import AsyncClient\n"+
						"async def main():\n async with AsyncClient() as client: print((await client.create("+quoted+")).id)\n"+
						"asyncio.run(main())")
				},
				"TypeScript": func() string {
					return conformance.Tool(t, typescript, environment, "node", "--input-type=module", "-e",
						`import { Client } from "@sandbox.internal/sdk"; console.log((await new Client().create(`+quoted+`)).id)`)
				},
				"console": func() string { return createdByTheConsole(t, s, console, c.image) },
			} {
				id := lastLine(create())
				s.Await(t, id, "Running")
				got := recordOf(t, s, id)
				if surface == "MCP" {
					want := map[string]any{"created-by": "mcp"} // what agents made can be found
					if !reflect.DeepEqual(got["metadata"], want) {
						t.Errorf("%s: the metadata is %v, want %v", surface, got["metadata"], want)
					}
					got["metadata"] = map[string]any{}
				}
				want := map[string]any{
					"image": map[string]any{"uri": busyboxImage}, "entrypoint": idle, "metadata": map[string]any{},
					"life": c.life, "owner": "server.api_key",
					"status": map[string]any{"state": "Running", "reason": "CONTAINER_RUNNING", "message": "execd answers"},
				}
				if c.limits != nil {
					want["limits"] = c.limits
				}
				if !reflect.DeepEqual(got, want) {
					t.Errorf("%s: the record is\n%v, want\n%v", surface, got, want)
				}
			}
		})
	}
}

// recordOf returns what the service shows of a sandbox, without its id and with its lifetime in the
// place of times.
func recordOf(t *testing.T, s *service, id string) map[string]any {
	t.Helper()
	info := s.Get(t, id)
	record, err := conformance.Decode[map[string]any](s.Send(t, http.MethodGet, "/v1/sandboxes/"+id, ""))
	if err != nil {
		t.Fatal(err)
	}
	record["life"] = info.ExpiresAt.Sub(info.CreatedAt)
	for _, field := range []string{"id", "createdAt", "expiresAt"} {
		delete(record, field)
	}
	delete(record["status"].(map[string]any), "lastTransitionAt")
	return record
}

func quotedAll(words []string) (quoted []string) {
	for _, word := range words {
		quoted = append(quoted, fmt.Sprintf("%q", word))
	}
	return quoted
}

func createdInGo(t *testing.T, s *service, image string) string {
	t.Helper()
	client, err := sandbox.New(&sandbox.Options{URL: s.URL, Key: conformance.AdminKey})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	var options *sandbox.CreateOptions
	if image != "" {
		options = &sandbox.CreateOptions{Image: image}
	}
	box, err := client.Create(t.Context(), options)
	if err != nil {
		t.Fatal(err)
	}
	return box.ID()
}

func createdOverMCP(t *testing.T, s *service, image string) string {
	t.Helper()
	arguments := map[string]any{}
	if image != "" {
		arguments["image"] = image
	}
	text := overHTTP(t, s.URL, conformance.AdminKey).call("create_sandbox", arguments)
	id, _, _ := strings.Cut(strings.TrimPrefix(text, "id: "), "\n")
	return id
}

// consoleSources returns a directory with the sources of the console, and what they import.
func consoleSources(t *testing.T) string {
	t.Helper()
	directory := conformance.CopyOf(t, "../../../server/console/web")
	packages := conformance.NodePackages(t, "server/console/web")
	if err := os.Symlink(packages, filepath.Join(directory, "node_modules")); err != nil {
		t.Fatal(err)
	}
	return directory
}

// createdByTheConsole sends what the console's form sends when nothing but the image is typed into
// it.
func createdByTheConsole(t *testing.T, s *service, sources, image string) string {
	t.Helper()
	version, err := conformance.Decode[map[string]any](s.Send(t, http.MethodGet, "/v1/version", ""))
	if err != nil {
		t.Fatal(err)
	}
	body := lastLine(conformance.Tool(t, sources, nil, "node", "--input-type=module", "-e", fmt.Sprintf(`
globalThis.addEventListener = () => {}; // a module of the page listens to its window
const { bodyOf } = await import("./src/create.js");
const elements = new Proxy({}, { get: (_, name) => ({ value: name === "uri" ? %q : "", checked: false }) });
console.log(JSON.stringify(bodyOf({ elements }, %s)));`, image, conformance.Encode(t, version["defaults"]))))
	answer := s.Send(t, http.MethodPost, "/v1/sandboxes", body)
	var created struct{ ID string }
	if err := json.Unmarshal([]byte(answer.Body), &created); err != nil || created.ID == "" {
		t.Fatalf("%s was answered with %s", body, answer)
	}
	return created.ID
}
