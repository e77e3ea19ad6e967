package mcp

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	sandbox "sandbox.internal/clients/go"
)

const (
	// defaultWait is how many seconds calls wait, and maxWait the most of that and of a command.
	defaultWait = int(defaultPatience / time.Second)
	maxWait     = 3600
	// interruptPatience is how long the interrupt of a command may take whose client has gone.
	interruptPatience = 5 * time.Second
	// defaultLanguage is the language of cells that name none.
	defaultLanguage = "python"
	// newContext is what agents write in place of the id of a context to get another one.
	newContext = "new"
	// defaultTail is how many lines of a sandbox's own log are read.
	defaultTail = 200
	// urlLife is how long the URL of a port is good at most.
	urlLife = time.Hour
	// maxImages bounds the images of one answer, and maxImageBytes their size together.
	maxImages     = 4
	maxImageBytes = 4 << 20
)

// addWork adds the tools for what runs in sandboxes.
func (t *tools) addWork(server *mcp.Server) {
	addStructured(server, &mcp.Tool{Name: "run_command",
		Description: "Run a shell command. One that still runs after wait_seconds goes on: " +
			"read_logs has the rest.",
		Annotations: changes("Run a command", true, false, true)}, t.runCommand)
	add(server, &mcp.Tool{Name: "run_code",
		Description: "Run a cell in a Jupyter kernel, if the image has one. Variables stay for later " +
			"cells. Shows images, too. A cell that still runs after wait_seconds goes on.",
		Annotations: changes("Run code", true, false, true)}, t.runCode)
	addStructured(server, &mcp.Tool{Name: "read_logs",
		Description: "Read output: of a command by its id, or else of the sandbox's own program.",
		Annotations: readOnly("Read logs")}, t.readLogs)
	addStructured(server, &mcp.Tool{Name: "wait_for_port",
		Description: "Wait until a server in the sandbox listens, and return a URL without a key.",
		Annotations: changes("Wait for a port", false, true, false)}, t.waitForPort)
}

type codeInput struct {
	boxInput
	Code     string `json:"code,omitempty"`
	Cell     string `json:"cell,omitempty" jsonschema:"in place of code: wait on for the cell with this id"`
	Language string `json:"language,omitempty" jsonschema:"default python"`
	Context  string `json:"context,omitempty" jsonschema:"'new', or its id; else one that calls share"`
	Wait     int    `json:"wait_seconds,omitempty" jsonschema:"answer at the latest after; default 45"`
	Timeout  int    `json:"timeout_seconds,omitempty" jsonschema:"interrupt it after; at most wait_seconds"`
}

func (t *tools) runCode(ctx context.Context, request call,
	in codeInput) (content, error) {
	wait, err := secondsOf("wait_seconds", in.Wait, defaultWait)
	if err != nil {
		return nil, err
	}
	timeout, err := secondsOf("timeout_seconds", in.Timeout, maxWait)
	switch {
	case err != nil:
		return nil, err
	case (in.Code == "") == (in.Cell == ""):
		return nil, errors.New("give either code or cell")
	case in.Timeout != 0 && timeout > wait:
		return nil, fmt.Errorf("timeout_seconds must not be more than wait_seconds, which is %d: "+
			"a cell that outlasts the call has no timeout", wait/time.Second)
	}
	box, err := t.box(ctx, in.Sandbox)
	if err != nil {
		return nil, err
	}
	made := ""
	if in.Context == newContext && in.Cell == "" {
		kernel, err := box.Code.CreateContext(ctx, cmp.Or(in.Language, defaultLanguage))
		if err != nil {
			return nil, err
		}
		in.Context, made = kernel.ID, "context: "+kernel.ID+"\n"
	}
	cell := box.Code.Connect(in.Cell)
	if in.Cell == "" {
		cell, err = box.Code.Start(ctx, in.Code, &sandbox.CodeOptions{
			Language: cmp.Or(in.Language, defaultLanguage), Context: in.Context})
	}
	var shown *results
	if err == nil {
		shown, err = awaitCell(ctx, request, cell, min(wait, timeout), in.Timeout != 0)
	}
	if err != nil {
		return nil, fmt.Errorf("%s%w", made, err) // the agent can go on with the context
	}
	if in.Context != "" && in.Cell == "" {
		shown.words = "context: " + in.Context + "\n" + shown.words
	}
	return append(content{&mcp.TextContent{Text: shown.words}}, shown.images...), nil
}

// awaitCell waits for the end of a cell, or for so long, and returns what it has shown by then. A
// cell that has not ended goes on, unless it is to be interrupted or the client has gone.
func awaitCell(ctx context.Context, request call, cell *sandbox.Cell, wait time.Duration,
	interrupted bool) (*results, error) {
	progress := newProgress(ctx, request)
	defer progress.stop()
	waiting, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	shown := &results{output: &excerpt{}, reserved: reservationOf(ctx)}
	collect := func(p []byte) {
		shown.output.add(p)
		progress.output(p)
	}
	ran, err := cell.Wait(waiting, &sandbox.CodeOptions{
		OnStdout: collect, OnStderr: collect, OnResult: shown.add, MaxOutput: 1,
	})
	switch {
	case err == nil:
		shown.end(ran.Error)
		return shown, nil
	case ctx.Err() == nil && waiting.Err() == nil:
		return nil, err
	case ctx.Err() == nil && !interrupted:
		shown.words = fmt.Sprintf("running after %v\ncell: %s\nrun_code with this cell waits for the rest.\n%s",
			wait, cell.ID, shown.output.text(noRest))
		return shown, nil
	}
	stopping, cancel := context.WithTimeout(context.WithoutCancel(ctx), interruptPatience)
	defer cancel()
	_ = cell.Interrupt(stopping) // best effort: the sandbox ends the cell at its expiry
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	return nil, fmt.Errorf("the cell was interrupted after %v. It had printed:\n%s", wait,
		shown.output.text(noRest))
}

// results are what a cell shows: its images, and everything else in the output.
type results struct {
	words    string // all but the images, once there is nothing more to wait for
	output   *excerpt
	reserved *reservation
	images   content
	size     int // of the images
}

// add shows one more.
func (r *results) add(result sandbox.CodeResult) {
	image := &mcp.ImageContent{Data: result.PNG(), MIMEType: "image/png"}
	if image.Data == nil {
		image = &mcp.ImageContent{Data: result.JPEG(), MIMEType: "image/jpeg"}
	}
	switch n := len(image.Data); {
	case n == 0:
		words := cmp.Or(result.Text(), result.Markdown(), result.HTML(), result.SVG())
		r.output.add([]byte(strings.TrimSuffix(words, "\n") + "\n"))
	case len(r.images) == maxImages || r.size+n > maxImageBytes || !r.reserved.tryAcquire(int64(n)):
		r.output.add(fmt.Appendf(nil,
			"[an image of %d bytes is left out; save it to a file and read_file it]\n", n))
	default:
		r.size += n
		r.images = append(r.images, image)
	}
}

// end sets the words of a cell that has ended.
func (r *results) end(failure *sandbox.CodeError) {
	if failure == nil {
		r.words = "ended well\n" + r.output.text(noRest)
		return
	}
	words := failure.Name + ": " + failure.Value
	if len(failure.Traceback) > 0 {
		words = strings.Join(failure.Traceback, "\n")
	}
	r.output.add([]byte(escapes.ReplaceAllString(words, "") + "\n"))
	r.words = "failed\n" + r.output.text(noRest)
}

// escapes are the colours of tracebacks.
var escapes = regexp.MustCompile("\x1b\\[[0-9;]*[A-Za-z]")

func noRest(int64) string { return "print less, or write it to a file and read_file that" }

type portInput struct {
	boxInput
	Port    int `json:"port"`
	Timeout int `json:"timeout_seconds,omitempty"`
}

// portOutput is where a port is reached.
type portOutput struct {
	URL    string `json:"url"`
	Header string `json:"header,omitempty"` // that requests need, with the key
}

func (t *tools) waitForPort(ctx context.Context, _ call,
	in portInput) (content, portOutput, error) {
	var out portOutput
	timeout, err := secondsOf("timeout_seconds", in.Timeout, defaultWait)
	if err != nil {
		return nil, out, err
	}
	if in.Port < 1 || in.Port > 65535 {
		return nil, out, fmt.Errorf("port must be 1 to 65535, not %d", in.Port)
	}
	box, err := t.box(ctx, in.Sandbox)
	if err != nil {
		return nil, out, err
	}
	timed, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	if err := box.WaitForPort(timed, in.Port); err != nil {
		if ctx.Err() == nil && timed.Err() != nil {
			return nil, out, fmt.Errorf("no process listens on port %d after %v", in.Port, timeout)
		}
		return nil, out, err
	}
	life := min(urlLife, time.Until(box.Info().ExpiresAt)-time.Second)
	endpoint, err := box.SignedEndpoint(ctx, in.Port, life)
	if errors.Is(err, sandbox.ErrBadRequest) || errors.Is(err, sandbox.ErrConflict) ||
		errors.Is(err, sandbox.ErrUnavailable) {
		// A service without a signing key has no such URLs.
		out = portOutput{box.ProxyURL(in.Port) + "/", sandbox.KeyHeader}
		return text("url: %s\nIt needs the header %s: %v", out.URL, out.Header, err), out, nil
	}
	if err != nil {
		return nil, out, err
	}
	out.URL = endpoint.URL
	return text("url: %s\ngood for: %v", out.URL, life.Round(time.Second)), out, nil
}
