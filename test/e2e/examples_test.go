package e2e_test

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"sandbox.internal/test/e2e/conformance"
	"sandbox.internal/test/wait"
)

const (
	exampleDirectory = "../../examples"
	pythonClient     = "../../clients/python"
	codeImage        = "sandbox/code-interpreter:dev"
)

// TestExamples runs the programs in examples/ as their readers do, against one service.
func TestExamples(t *testing.T) {
	t.Parallel()
	s := start(t, conformance.Plan{})
	for name, test := range map[string]func(*testing.T, *service){
		"agent":                     testAgent,
		"agent with a model":        testAgentWithModel,
		"analysis":                  testAnalysis,
		"preview":                   testPreview,
		"preview of a bad app":      testPreviewFails,
		"testrunner":                testTestRunner,
		"testrunner of a bad suite": testTestRunnerFails,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, s)
		})
	}
}

// TestExamplesPage: the page has a command for every example, with paths that there are.
func TestExamplesPage(t *testing.T) {
	t.Parallel()
	directories, err := os.ReadDir(exampleDirectory)
	if err != nil {
		t.Fatal(err)
	}
	page := conformance.ReadPage(t, "examples/README.md")
	for _, directory := range directories {
		if !directory.IsDir() {
			continue
		}
		_, row, found := strings.Cut(page, "\n| ["+directory.Name()+"](")
		cells := strings.Split(strings.SplitN(row, "\n", 2)[0], "|")
		if !found || len(cells) != 4 {
			t.Errorf("examples/README.md has no row for %s", directory.Name())
			continue
		}
		command := strings.Fields(strings.Trim(cells[2], " `"))
		path := command[len(command)-1]
		if _, err := os.Stat(filepath.Join("../..", path)); err != nil ||
			!strings.Contains(path, "examples/"+directory.Name()) {
			t.Errorf("%q does not run %s: %v", cells[2], directory.Name(), err)
		}
	}
	if len(directories) < 6 { // with the page
		t.Errorf("there are only %v", directories)
	}
}

// pythonExample runs a program of examples/ from a copy and returns what it prints and the
// directory that it ran in.
func pythonExample(t *testing.T, s *service, variables []string, name, program string,
	arguments ...string) (output, directory string, err error) {
	t.Helper()
	directory = t.TempDir()
	script := filepath.Join(conformance.CopyOf(t, filepath.Join(exampleDirectory, name)), program)
	command := exec.CommandContext(t.Context(), conformance.Script(t, "python.sh"), append([]string{script},
		arguments...)...)
	command.Dir, command.WaitDelay = directory, time.Minute
	command.Env = append(append(os.Environ(), s.Variables()...),
		"PYTHONPATH="+filepath.Join(conformance.CopyOf(t, pythonClient), "src"), "NO_PROXY=127.0.0.1")
	command.Env = append(command.Env, variables...)
	out, err := command.CombinedOutput()
	return string(out), directory, err
}

// goExample is a program of examples/ that is not started yet.
func goExample(t *testing.T, s *service, name string, arguments ...string) *exec.Cmd {
	t.Helper()
	command := exec.CommandContext(t.Context(), conformance.Build(t, "sandbox.internal/examples/"+name),
		arguments...)
	command.Dir, command.Env = t.TempDir(), append(os.Environ(), s.Variables()...)
	command.WaitDelay = time.Minute
	return command
}

// testAgent runs the agent with the script that stands in for a model.
func testAgent(t *testing.T, s *service) {
	out, _, err := pythonExample(t, s, []string{"OPENAI_BASE_URL="}, "agent", "agent.py", baseImage)
	if err != nil || !strings.HasSuffix(out, "the model says: 'the mean was divided by one too few'\n"+
		"the tests pass\n") {
		t.Errorf("%v\n%s", err, out)
	}
}

// testAgentWithModel puts an endpoint of chat completions in front of the agent, which calls tools
// wrongly first, and then leaves the bug where it is.
func testAgentWithModel(t *testing.T, s *service) {
	const key = "the-key-of-the-model"
	tools := []struct{ name, arguments, result string }{
		{"run_command", `{"command": "head -c 20000 /dev/zero | tr '\\0' x; exit 7"}`,
			"[12012 characters are left out]"},
		{"run_command", `{"commands": "ls"}`, "error: "},
		{"run_command", `["ls"]`, "error: "},
		{"remove", `{"path": "/"}`, "error: there is no tool remove"},
		{"read_file", `{"path": "/srv/project/other.py"}`, "error: 404 FILE_NOT_FOUND"},
		{"read_file", `{"path": "/srv/project/mean.py"}`, "return sum(numbers)"},
		{"write_file", `{"path": "/srv/project/test_mean.py", "content": ""}`, "written"},
	}
	var mu sync.Mutex // each turn has a connection of its own
	turn := 0
	model := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		var asked struct {
			Model    string
			Messages []struct {
				Role, Content string
				ToolCallID    string `json:"tool_call_id"`
			}
			Tools []struct {
				Type     string
				Function struct {
					Name, Description string
					Parameters        struct{ Required []string }
				}
			}
		}
		if err := json.NewDecoder(r.Body).Decode(&asked); err != nil ||
			r.URL.Path != "/v1/chat/completions" || r.Header.Get("Authorization") != "Bearer "+key ||
			asked.Model != "small" || len(asked.Messages) != 2+2*turn || len(asked.Tools) != 3 ||
			asked.Tools[2].Function.Description == "" ||
			strings.Join(asked.Tools[2].Function.Parameters.Required, " ") != "path content" {
			t.Errorf("%v: %s %+v", err, r.URL.Path, asked)
			http.Error(w, "not so", http.StatusBadRequest)
			return
		}
		if last := asked.Messages[len(asked.Messages)-1]; turn > 0 && (last.Role != "tool" ||
			last.ToolCallID != fmt.Sprint("call-", turn-1) ||
			!strings.Contains(last.Content, tools[turn-1].result) || len(last.Content) > 8100) {
			t.Errorf("the result of %+v is %+v", tools[turn-1], last)
		}
		message := map[string]any{"role": "assistant", "content": "done\x1b[31m"}
		if turn < len(tools) {
			message = map[string]any{"role": "assistant", "content": nil, "tool_calls": []any{
				map[string]any{"id": fmt.Sprint("call-", turn), "type": "function",
					"function": map[string]string{
						"name": tools[turn].name, "arguments": tools[turn].arguments}}}}
		}
		turn++
		if err := json.NewEncoder(w).Encode(
			map[string]any{"choices": []any{map[string]any{"message": message}}}); err != nil {
			t.Error(err)
		}
	}))
	defer model.Close()
	out, _, err := pythonExample(t, s, []string{"OPENAI_BASE_URL=" + model.URL + "/v1/",
		"OPENAI_MODEL=small", "OPENAI_API_KEY=" + key}, "agent", "agent.py", baseImage)
	mu.Lock()
	defer mu.Unlock()
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.ExitCode() != 1 || turn != len(tools)+1 ||
		!strings.HasSuffix(out, `the model says: 'done\x1b[31m'`+"\nthe tests still fail\n") {
		t.Errorf("%v after %d turns\n%s", err, turn, out)
	}
}

func testAnalysis(t *testing.T, s *service) {
	out, directory, err := pythonExample(t, s, nil, "analysis", "analysis.py",
		filepath.Join(conformance.CopyOf(t, filepath.Join(exampleDirectory, "analysis")), "sales.csv"), codeImage)
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	conformance.Contains(t, out, "north", "'December 2025 with ")
	for _, name := range []string{"plot-1.png", "plot-2.png"} {
		picture, err := os.ReadFile(filepath.Join(directory, name))
		if err != nil || len(picture) < 5000 || !bytes.HasPrefix(picture, []byte("\x89PNG\r\n")) {
			t.Errorf("%s: %v, %d bytes", name, err, len(picture))
		}
	}
}

// TestPythonExampleThatDraws runs the example of the Python client whose cells need more than
// Python.
func TestPythonExampleThatDraws(t *testing.T) {
	t.Parallel()
	s := start(t, conformance.Plan{})
	client := conformance.CopyOf(t, pythonClient)
	out := conformance.Tool(t, t.TempDir(), append(s.Variables(), "PYTHONPATH="+filepath.Join(client, "src")),
		conformance.Script(t, "python.sh"), filepath.Join(client, "examples", "cells.py"), codeImage)
	conformance.Contains(t, out, "picture-0.png has ")
}

// testPreview uses the web app at its link, changes the app, and ends the program as Ctrl-C does.
func testPreview(t *testing.T, s *service) {
	app := conformance.CopyOf(t, filepath.Join(exampleDirectory, "preview", "app"))
	command := goExample(t, s, "preview", "-image", baseImage, app)
	input, err := command.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	output, err := command.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	var stderr bytes.Buffer
	command.Stderr = &stderr
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(output)
	line := func() string {
		t.Helper()
		if !lines.Scan() {
			err := command.Wait()
			t.Fatalf("the example has ended: %v\n%s", err, stderr.String())
		}
		return lines.Text()
	}

	link := line()
	conformance.Contains(t, conformance.Fetch(t, link).Body, "<h1>Guest book</h1>", "<ul></ul>")
	answer, err := wait.Client().PostForm(link, url.Values{"entry": {"Ada & co"}})
	if err != nil {
		t.Fatal(err)
	}
	page, err := io.ReadAll(answer.Body)
	if err := errors.Join(err, answer.Body.Close()); err != nil {
		t.Fatal(err)
	}
	conformance.Contains(t, string(page), "<li>Ada &amp; co</li>")

	conformance.Write(t, app, "page.html", "another page")
	if _, err := io.WriteString(input, "\n"); err != nil {
		t.Fatal(err)
	}
	if got := line(); got != "updated" {
		t.Errorf("the example prints %q", got)
	}
	if got := conformance.Fetch(t, link).Body; got != "another page" {
		t.Errorf("the updated page is %q", got)
	}

	if err := command.Process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	if lines.Scan() || command.Wait() != nil {
		t.Errorf("the example prints %q\n%s", lines.Text(), stderr.String())
	}
	for _, box := range s.Everything(t) {
		if strings.Contains(link, box.ID) && box.Status.State != "Terminated" {
			t.Errorf("the example leaves the sandbox %s behind, which is %s", box.ID, box.Status.State)
		}
	}
}

// testPreviewFails previews an app that ends at once.
func testPreviewFails(t *testing.T, s *service) {
	app := t.TempDir()
	conformance.Write(t, app, "server.py", "raise SystemExit('no \\x1b[31m')\n")
	out, err := goExample(t, s, "preview", "-image", baseImage, app).CombinedOutput()
	if err == nil {
		t.Errorf("the example succeeds\n%s", out)
	}
	conformance.Contains(t, string(out), `the app has ended: the command ended with exit code 1: "no \x1b[31m\n"`)
}

func testTestRunner(t *testing.T, s *service) {
	out, err := goExample(t, s, "testrunner", "-image", baseImage).CombinedOutput()
	if err != nil || strings.Count(string(out), "ok   ") != 25 {
		t.Errorf("%v\n%s", err, out)
	}
	conformance.Contains(t, string(out), "test_roman.Numerals.test_3999\n",
		"25 tests in 20 sandboxes, 0 failed, ")
}

// testTestRunnerFails runs a project with a test that fails, and one whose tests cannot be loaded.
func testTestRunnerFails(t *testing.T, s *service) {
	for _, project := range []struct {
		content, prints string
		code            int
	}{
		{"class T(unittest.TestCase):\n  def test_a(self): self.fail('because\\x1b[31m')\n" +
			"  def test_b(self): pass\n", "because\ufffd[31m", 1},
		{"missing()\n", "name 'missing' is not defined", 2},
	} {
		directory := t.TempDir()
		conformance.Write(t, directory, "test_it.py", "import unittest\n"+project.content)
		command := goExample(t, s, "testrunner", "-image", baseImage, "-sandboxes", "2", directory)
		out, err := command.CombinedOutput()
		if err == nil || command.ProcessState.ExitCode() != project.code {
			t.Errorf("%v, not exit code %d\n%s", err, project.code, out)
		}
		conformance.Contains(t, string(out), project.prints)
	}
}

// TestNetworkExample runs examples/network where the names of its commands are known.
func TestNetworkExample(t *testing.T) {
	t.Parallel()
	o := newOutside(t)
	s := start(t, conformance.Plan{Settings: o.EgressSettings(egressImage)})
	out, err := goExample(t, s, "network", "-image", baseImage, conformance.Fetching("allowed.test"),
		conformance.Fetching("denied.test")).CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	works := conformance.Fetching("allowed.test") + ": works\n"
	conformance.Contains(t, string(out), works+"allowed from now on:\n  allowed.test\n"+works,
		conformance.Fetching("denied.test")+": the command ended with exit code ",
		"  allow  \"allowed.test\"\n", "  deny   \"denied.test\"\n")
}
