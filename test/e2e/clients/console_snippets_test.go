package clients_test

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"sandbox.internal/test/e2e/conformance"
)

// TestConsoleSnippets compiles what the pages of the console show as code, and runs for curl and
// Python what ends by itself and needs nothing but a sandbox.
func TestConsoleSnippets(t *testing.T) {
	t.Parallel()
	s := start(t, conformance.Plan{})
	request := conformance.Request(baseImage, "sh", "-c", "echo printed; sleep 3600")
	request.Timeout = 3600 // it outlives the compilers, and what is signed for its port
	id := s.Running(t, request)
	web := conformance.CopyOf(t, "../../../server/console/web")
	var snippets map[string]map[string]string // by page and language
	out := conformance.Tool(t, web, nil, "node", "--input-type=module", "-e", fmt.Sprintf(`
import { languages, names, snippet } from "./src/snippets.js";
const of = (page) => Object.fromEntries(Object.keys(languages).map((name) => [name, snippet(page, name, {id: %q, image: %q})]));
console.log(JSON.stringify(Object.fromEntries(names.map((page) => [page, of(page)]))));`, id, baseImage))
	if err := json.Unmarshal([]byte(lastLine(out)), &snippets); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if len(snippets) < 10 {
		t.Errorf("%d pages have snippets", len(snippets))
	}

	python, client := pythonHere(t), conformance.CopyOf(t, pythonClient)
	environment := append(s.Variables(), "SANDBOX_URL="+s.URL, "PYTHONPATH="+filepath.Join(client, "src"))
	typescript := buildTypeScript(t)
	for page, code := range snippets {
		directory := t.TempDir()
		conformance.Write(t, directory, "main.go", code["go"])
		conformance.Tool(t, conformance.Root(t), nil, "go", "vet", filepath.Join(directory, "main.go"))
		conformance.Write(t, directory, "main.py", code["python"])
		conformance.Tool(t, directory, nil, python, "-m", "py_compile", "main.py")
		conformance.Tool(t, directory, nil, "sh", "-n", "-c", code["curl"])
		conformance.Write(t, filepath.Join(typescript, "examples"), page+".console.ts", code["typescript"])
	}
	conformance.Tool(t, typescript, nil, "node_modules/.bin/tsc", "-p", "test")
	for _, ran := range []struct{ page, prints string }{
		{"list", id}, {"images", baseImage}, {"keys", "admin"}, {"summary", "Running"}, {"terminal", "bin"},
		{"activity", "ls -l /"}, {"files", "root:"}, {"logs", "printed"}, {"ports", "http"}, {"new", "-"},
	} {
		page, prints := ran.page, ran.prints
		conformance.Write(t, client, "main.py", snippets[page]["python"])
		got := map[string]string{
			"curl":   conformance.Tool(t, t.TempDir(), environment, "sh", "-c", snippets[page]["curl"]),
			"python": conformance.Tool(t, client, environment, python, "main.py"),
		}
		for language, printed := range got {
			if !strings.Contains(printed, prints) {
				t.Errorf("%s of %s prints %q, which lacks %q", language, page, printed, prints)
			}
		}
	}
}
