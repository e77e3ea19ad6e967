package clients_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/jsonschema-go/jsonschema"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"sandbox.internal/server/config"
	"sandbox.internal/test/e2e/conformance"
	"sandbox.internal/test/wait"
)

// model is a scripted one. It knows what tools/list says, the words of its task, and what earlier
// answers have: no name of a tool or an argument.
type model struct {
	*agent
	tools  []*mcp.Tool
	memory map[string]any // the members of structured answers
}

// task is what a person asks for: words, by which the model chooses a tool, and values of the words
// that name or describe an argument.
type task struct {
	words  string
	values map[string]any
}

// TestModelKnowsToolsAlone: what tools/list says suffices to work with sandboxes.
func TestModelKnowsToolsAlone(t *testing.T) {
	t.Parallel()
	const user = "the-key-of-a-user-of-this-test-xx"
	s := startWithPython(t, conformance.Plan{Keys: []config.Key{
		{Name: "user", SHA256: digest(user), Role: config.RoleUser},
	}})
	m := newModel(t, overHTTP(t, s.URL, conformance.AdminKey))
	if list := toolsOf(t, overHTTP(t, s.URL, user)); strings.Contains(list, pythonImage) {
		t.Error("a key that may not list images gets them with the tools")
	}

	// 1: the schema has the images. 10: an error says what to correct.
	created := m.does(task{"create a sandbox", map[string]any{
		"image": "python", "life": 5, "name": "of a model", "memory": "512Mi"}})
	id, _ := created["id"].(string)
	if created["state"] != "Running" {
		t.Fatalf("created: %v", created)
	}
	// 2
	ran := m.does(task{"run a shell command", map[string]any{"command": "echo $((6 * 7)); exit 3"}})
	if ran["output"] != "42\n" || ran["exit_code"] != 3.0 {
		t.Errorf("the command: %v", ran)
	}
	// 3: the second cell has the variables of the first one.
	m.does(task{"run code in a kernel", map[string]any{"code": "x = 41"}})
	m.does(task{"run code in a kernel", map[string]any{"code": "print(x + 1)"}})
	if text := m.memory["text"]; !strings.HasSuffix(fmt.Sprint(text), "ended well\n42\n") {
		t.Errorf("the second cell: %q", text)
	}
	// 4
	m.does(task{"write a file", map[string]any{"path": "/work/index.html", "content": "a note"}})
	m.does(task{"read a text file", map[string]any{"path": "/work/index.html"}})
	if m.memory["text"] != "a note" {
		t.Errorf("the file: %q", m.memory["text"])
	}
	found := m.does(task{"search files: find them by a glob", map[string]any{
		"path": "/work", "pattern": "*.html"}})
	if fmt.Sprint(found["files"]) != "[map[path:/work/index.html size:6]]" {
		t.Errorf("found: %v", found)
	}
	m.outlasted()
	// 6
	m.does(task{"run a shell command", map[string]any{"background": true,
		"command": "cd /work && exec python3 -m http.server 8000"}})
	m.does(task{"wait for a port: get its URL", map[string]any{"port": 8000, "timeout": 60}})
	if page := get(t, fmt.Sprint(m.memory["url"])); page != "a note" {
		t.Errorf("the port: %q", page)
	}
	// 7
	for _, want := range []string{"Paused", "Running"} {
		got := m.does(task{"pause a sandbox or resume it", map[string]any{"paused": want == "Paused"}})
		if got["state"] != want {
			t.Errorf("the state is to be %s: %v", want, got)
		}
	}
	m.does(task{"renew a sandbox: expire later", map[string]any{"life": 86400}})
	// 8
	listed := func() bool {
		text, err := json.Marshal(m.does(task{"list sandboxes", nil})["sandboxes"])
		return err == nil && strings.Contains(string(text), id)
	}
	if !listed() {
		t.Error("the list lacks the sandbox")
	}
	// 9
	m.does(task{"delete a sandbox", nil})
	wait.Until(t, "the list has living sandboxes alone", func() bool { return !listed() })
	ended := m.does(task{"list sandboxes", map[string]any{"state": "Terminated"}})
	if text := fmt.Sprint(ended["sandboxes"]); !strings.Contains(text, id) {
		t.Errorf("the ended sandboxes: %s", text)
	}
}

// outlasted: a command that takes longer than the model waits goes on, and its id has the rest (5).
func (m *model) outlasted() {
	m.t.Helper()
	const command = "echo early; while [ ! -e /work/go ]; do sleep 0.05; done; echo late"
	begun := m.does(task{"run a shell command", map[string]any{"command": command, "wait": 1}})
	if begun["running"] != true || begun["command"] == nil || begun["cursor"] == nil {
		m.t.Fatalf("a command that goes on: %v", begun)
	}
	follow := map[string]any{"cursor": begun["cursor"], "command": begun["command"], "wait": 60}
	m.does(task{"write a file", map[string]any{"path": "/work/go", "content": ""}})
	rest := m.does(task{"read the output logs of a command", follow})
	output := fmt.Sprint(begun["output"], rest["output"])
	if rest["running"] == true || rest["exit_code"] != 0.0 || output != "early\nlate\n" {
		m.t.Errorf("the command: %v, then %v", begun, rest)
	}
}

func newModel(t *testing.T, a *agent) *model {
	t.Helper()
	list, err := a.ListTools(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	text, err := json.Marshal(list.Tools)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("tools/list has %d tokens", len(text)/4)
	return &model{agent: a, tools: list.Tools, memory: map[string]any{}}
}

func toolsOf(t *testing.T, a *agent) string {
	t.Helper()
	text, err := json.Marshal(newModel(t, a).tools)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// does carries out a task, and once more with what an error says about an argument. It returns the
// structured answer.
func (m *model) does(todo task) map[string]any {
	m.t.Helper()
	tool := m.choose(todo.words)
	arguments := m.arguments(tool, todo.values)
	result := m.try(tool, arguments)
	if result.IsError {
		said := textOf(result)
		rule := regexp.MustCompile(`(\w+) must be \d+ to (\d+)`).FindStringSubmatch(said)
		if rule == nil {
			m.t.Fatalf("%q, %s %v: %s", todo.words, tool.Name, arguments, said)
		}
		most, err := strconv.Atoi(rule[2])
		if err != nil {
			m.t.Fatal(err)
		}
		arguments[rule[1]] = most
		if result = m.try(tool, arguments); result.IsError {
			m.t.Fatalf("corrected %s %v: %s", tool.Name, arguments, textOf(result))
		}
	}
	m.memory["text"] = textOf(result)
	facts, _ := result.StructuredContent.(map[string]any)
	if (tool.OutputSchema != nil) != (facts != nil) {
		m.t.Errorf("%s: the answer has a structure: %t", tool.Name, facts != nil)
	}
	if facts != nil {
		resolve(m.t, tool.OutputSchema, facts)
	}
	for name, value := range facts {
		if name != "id" || m.memory["id"] == nil { // the sandbox stays the one that was created
			m.memory[name] = value
		}
	}
	return facts
}

func (m *model) try(tool *mcp.Tool, arguments map[string]any) *mcp.CallToolResult {
	m.t.Helper()
	resolve(m.t, tool.InputSchema, arguments)
	result, err := m.CallTool(m.t.Context(), &mcp.CallToolParams{Name: tool.Name, Arguments: arguments})
	if err != nil {
		m.t.Fatal(err)
	}
	return result
}

var word = regexp.MustCompile(`[a-z]{3,}`)

func wordsOf(text string) []string { return word.FindAllString(strings.ToLower(text), -1) }

// choose returns the tool whose name and description have the most of the words. Words of its name
// count more.
func (m *model) choose(words string) *mcp.Tool {
	m.t.Helper()
	var best *mcp.Tool
	most := 0
	for _, tool := range m.tools {
		score := 0
		for _, w := range wordsOf(words) {
			if slices.Contains(wordsOf(strings.ReplaceAll(tool.Name, "_", " ")), w) {
				score += 3
			}
			if slices.Contains(wordsOf(tool.Description), w) {
				score++
			}
		}
		if score > most {
			best, most = tool, score
		}
	}
	if best == nil {
		m.t.Fatalf("no tool is for %q", words)
	}
	return best
}

// arguments are those that the schema requires, or that the task has a value for.
func (m *model) arguments(tool *mcp.Tool, values map[string]any) map[string]any {
	m.t.Helper()
	schema := tool.InputSchema.(map[string]any)
	properties, _ := schema["properties"].(map[string]any)
	required, _ := schema["required"].([]any)
	arguments, used := map[string]any{}, map[string]bool{}
	for name, property := range properties {
		property := property.(map[string]any)
		description, _ := property["description"].(string)
		for key, value := range values {
			if slices.Contains(wordsOf(strings.ReplaceAll(name, "_", " ")), key) {
				arguments[name], used[key] = listedValue(description, value), true
			}
		}
		if _, ok := arguments[name]; ok || !slices.Contains(required, any(name)) {
			continue
		}
		// The argument is what an earlier answer calls by its name, or by its description.
		value, ok := m.memory[name]
		if !ok {
			value, ok = m.memory[description]
		}
		if !ok {
			m.t.Fatalf("%s: the model has no %s (%s)", tool.Name, name, description)
		}
		arguments[name] = value
	}
	for key := range values {
		if !used[key] {
			m.t.Fatalf("%s has no argument for %q", tool.Name, key)
		}
	}
	return arguments
}

// listedValue is the value with a word among those that a description lists, if it lists any.
func listedValue(description string, value any) any {
	_, list, ok := strings.Cut(description, "on the service: ")
	wanted, isText := value.(string)
	if !ok || !isText {
		return value
	}
	for listed := range strings.SplitSeq(list, ", ") {
		if strings.Contains(listed, wanted) {
			return listed
		}
	}
	return value
}

// resolve checks a value by a schema as it came over the wire.
func resolve(t *testing.T, wire any, value map[string]any) {
	t.Helper()
	text, err := json.Marshal(wire)
	if err != nil {
		t.Fatal(err)
	}
	var schema jsonschema.Schema
	if err := json.Unmarshal(text, &schema); err != nil {
		t.Fatal(err)
	}
	resolved, err := schema.Resolve(nil)
	if err != nil {
		t.Fatal(err)
	}
	// As JSON has it: numbers are float64.
	text, err = json.Marshal(value)
	if err != nil {
		t.Fatal(err)
	}
	var plain any
	if err := json.Unmarshal(text, &plain); err != nil {
		t.Fatal(err)
	}
	if err := resolved.Validate(plain); err != nil {
		t.Errorf("%s: %v", text, err)
	}
}

func textOf(result *mcp.CallToolResult) string {
	var text strings.Builder
	for _, content := range result.Content {
		if c, ok := content.(*mcp.TextContent); ok {
			text.WriteString(c.Text)
		}
	}
	return text.String()
}

// get returns the page at a URL.
func get(t *testing.T, url string) string {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: wait.Patience()}
	response, err := client.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(io.LimitReader(response.Body, 1<<20))
	if err != nil {
		t.Fatal(err)
	}
	return string(body)
}
