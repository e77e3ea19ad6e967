package clients_test

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"sandbox.internal/test/e2e/lives"
)

// TestConsoleSnippets compiles what the pages of the console show as code, and runs for curl and
// Python what ends by itself and needs nothing but a sandbox.
func TestConsoleSnippets(t *testing.T) {
	t.Parallel()
	s := start(t, lives.Plan{})
	request := lives.Request(baseImage, "sh", "-c", "echo printed; sleep 3600")
	request.Timeout = 3600 // it outlives the compilers, and what is signed for its port
	id := s.Running(t, request)
	web := lives.CopyOf(t, "../../../server/console/web")
	var snippets map[string]map[string]string // by page and language
	out := lives.Tool(t, web, nil, "node", "--input-type=module", "-e", fmt.Sprintf(`
import { languages, names, snippet } from "./src/snippets.js";
const of = (page) => Object.fromEntries(Object.keys(languages).map((name) => [name, snippet(page, name, {id: %q, image: %q})]));
console.log(JSON.stringify(Object.fromEntries(names.map((page) => [page, of(page)]))));`, id, baseImage))
	if err := json.Unmarshal([]byte(lastLine(out)), &snippets); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if len(snippets) < 10 {
		t.Errorf("%d pages have snippets", len(snippets))
	}

	python, client := pythonHere(t), lives.CopyOf(t, pythonClient)
	environment := append(s.Variables(), "SANDBOX_URL="+s.URL, "PYTHONPATH="+filepath.Join(client, "src"))
	typescript := buildTypeScript(t)
	for page, code := range snippets {
		folder := t.TempDir()
		lives.Write(t, folder, "main.go", code["go"])
		lives.Tool(t, lives.Root(t), nil, "go", "vet", filepath.Join(folder, "main.go"))
		lives.Write(t, folder, "main.py", code["python"])
		lives.Tool(t, folder, nil, python, "-m", "py_compile", "main.py")
		lives.Tool(t, folder, nil, "sh", "-n", "-c", code["curl"])
		lives.Write(t, filepath.Join(typescript, "examples"), page+".console.ts", code["typescript"])
	}
	lives.Tool(t, typescript, nil, "node_modules/.bin/tsc", "-p", "test")
	for _, ran := range []struct{ page, prints string }{
		{"list", id}, {"images", baseImage}, {"keys", "admin"}, {"summary", "Running"}, {"terminal", "bin"},
		{"activity", "ls -l /"}, {"files", "root:"}, {"logs", "printed"}, {"ports", "http"}, {"new", "-"},
	} {
		page, prints := ran.page, ran.prints
		lives.Write(t, client, "main.py", snippets[page]["python"])
		got := map[string]string{
			"curl":   lives.Tool(t, t.TempDir(), environment, "sh", "-c", snippets[page]["curl"]),
			"python": lives.Tool(t, client, environment, python, "main.py"),
		}
		for language, printed := range got {
			if !strings.Contains(printed, prints) {
				t.Errorf("%s of %s prints %q, which lacks %q", language, page, printed, prints)
			}
		}
	}
}
