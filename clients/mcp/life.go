package mcp

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/google/jsonschema-go/jsonschema"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	sandbox "sandbox.internal/clients/go"
)

const (
	// maxLife bounds a sandbox's life, in seconds; it is the contract's.
	maxLife = 86400
	// maxListed is how many sandboxes one call lists. maxName and maxImage bound what is shown of
	// their names and images, in bytes.
	maxListed = 50
	maxName   = 64
	maxImage  = 256
	// leavePatience is how long the deletion of a sandbox may take whose creator has gone.
	leavePatience = 10 * time.Second
)

// addLife adds the tools for the lives of sandboxes.
func (t *tools) addLife(server *mcp.Server, classes []string) {
	addStructured(server, &mcp.Tool{Name: createTool, InputSchema: createSchema(classes),
		Description: "Create a sandbox and wait until it runs. Returns its id.",
		Annotations: changes("Create a sandbox", false, false, true)}, t.create)
	addStructured(server, &mcp.Tool{Name: "list_sandboxes", InputSchema: listSchema(),
		Description: "List your sandboxes that have not ended, or those of a state. Newest first.",
		Annotations: readOnly("List sandboxes")}, t.list)
	addStructured(server, &mcp.Tool{Name: "renew_sandbox",
		Description: "Make a sandbox expire later.",
		Annotations: changes("Renew a sandbox", false, true, false)}, t.renew)
	addStructured(server, &mcp.Tool{Name: "pause_sandbox",
		Description: "Pause a sandbox, keeping its processes and memory, or resume it. " +
			"It expires all the same.",
		Annotations: changes("Pause or resume a sandbox", false, true, false)}, t.pause)
	add(server, &mcp.Tool{Name: "delete_sandbox",
		Description: "Delete a sandbox with everything in it.",
		Annotations: changes("Delete a sandbox", true, true, false)}, t.delete)
}

// createTool is the name of the tool that creates, and imageField that of its image.
const (
	createTool = "create_sandbox"
	imageField = "image"
)

type createInput struct {
	Image      string            `json:"image,omitempty" jsonschema:"container image; default: the service's, if any"`
	Life       int               `json:"life_seconds,omitempty" jsonschema:"60 to 86400"`
	Name       string            `json:"name,omitempty" jsonschema:"label for people"`
	Env        map[string]string `json:"env,omitempty"`
	CPU        string            `json:"cpu,omitempty" jsonschema:"e.g. 500m"`
	Memory     string            `json:"memory,omitempty" jsonschema:"e.g. 512Mi"`
	AllowHosts []string          `json:"allow_hosts,omitempty" jsonschema:"all it may reach: domains, CIDRs"`
	Class      string            `json:"runtime_class,omitempty" jsonschema:"what runs it, e.g. gvisor"`
	sleepSettings
}

// createSchema is the schema of createInput, with the names of the service's runtime classes, and
// without the field where there are none.
func createSchema(classes []string) *jsonschema.Schema {
	schema, err := jsonschema.For[createInput](nil)
	if err != nil {
		panic(err) // the type is fixed
	}
	limitSleep(schema)
	const field = "runtime_class"
	if len(classes) == 0 {
		delete(schema.Properties, field)
		schema.PropertyOrder = slices.DeleteFunc(schema.PropertyOrder,
			func(name string) bool { return name == field })
		return schema
	}
	for _, name := range classes {
		schema.Properties[field].Enum = append(schema.Properties[field].Enum, name)
	}
	return schema
}

// boxOutput is what calls report of a sandbox.
type boxOutput struct {
	ID      string `json:"id"`
	State   string `json:"state"`
	Expires string `json:"expires"`
}

func outputOf(info sandbox.Info) boxOutput {
	return boxOutput{info.ID, string(info.Status.State), info.ExpiresAt.Format(time.RFC3339)}
}

func (t *tools) create(ctx context.Context, request call,
	in createInput) (content, boxOutput, error) {
	var none boxOutput
	if in.Life != 0 && in.Life < 60 || in.Life > maxLife {
		return nil, none, fmt.Errorf("life_seconds must be 60 to %d, not %d", maxLife, in.Life)
	}
	if err := in.check(); err != nil {
		return nil, none, err
	}
	options := &sandbox.CreateOptions{
		Image: in.Image, Timeout: time.Duration(in.Life) * time.Second, Env: in.Env,
		CPU: in.CPU, Memory: in.Memory,
		Metadata: map[string]string{"created-by": "mcp"}, RuntimeClass: in.Class, Wait: -1,
		Lifecycle: in.options(),
	}
	if in.Name != "" {
		options.Metadata["name"] = in.Name
	}
	if in.AllowHosts != nil {
		policy := sandbox.NetworkPolicy{DefaultAction: new(sandbox.Deny)}
		for _, host := range in.AllowHosts {
			policy.Egress = append(policy.Egress,
				sandbox.EgressRule{Action: sandbox.Allow, Target: host})
		}
		options.NetworkPolicy = &policy
	}
	client, err := t.client(ctx)
	if err != nil {
		return nil, none, err
	}
	box, err := client.Create(ctx, options)
	if err != nil {
		if in.Image == "" && errors.Is(err, sandbox.ErrBadRequest) {
			err = suggest(ctx, client, err)
		}
		return nil, none, err
	}
	waiting, cancel := context.WithTimeout(ctx, t.patience)
	defer cancel()
	info, err := started(waiting, request, box)
	var failed *sandbox.StateError
	switch {
	case err == nil:
		return text("%s", describe(info)), outputOf(info), nil
	case ctx.Err() != nil: // no client has its id
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), leavePatience)
		defer cancel()
		return nil, none, errors.Join(err, box.Delete(ctx))
	case errors.As(err, &failed):
		if failed.Reason == "IMAGE_PULL_ERROR" {
			err = suggest(ctx, client, err)
		}
		return nil, none, err
	case waiting.Err() == nil:
		return nil, none, err
	}
	info = box.Info()
	return text("%s\nThe sandbox is not ready after %v; list_sandboxes shows when its state is %s.",
		describe(info), t.patience, sandbox.Running), outputOf(info), nil
}

func describe(info sandbox.Info) string {
	return fmt.Sprintf("id: %s\nstate: %s\nexpires: %s", info.ID, info.Status.State,
		info.ExpiresAt.Format(time.RFC3339))
}

// started waits until a new sandbox runs, and reports how far it is.
func started(ctx context.Context, request call, box *sandbox.Sandbox) (sandbox.Info, error) {
	progress := newProgress(ctx, request)
	defer progress.stop()
	for event, err := range box.Events(ctx, &sandbox.EventOptions{FromStart: true}) {
		if err != nil {
			return sandbox.Info{}, err
		}
		switch {
		case event.Stage != nil:
			progress.say(*event.Stage)
		case event.Type == sandbox.EventProgress && event.Message != nil:
			progress.say(*event.Message)
		}
		pending := event.To != nil && *event.To == sandbox.Pending
		if event.Type != sandbox.EventStage && event.Type != sandbox.EventProgress && !pending {
			break
		}
	}
	return box.Wait(ctx, sandbox.Running)
}

// living are the states of sandboxes that have not ended, and ended the others.
var (
	living = []string{sandbox.Running, sandbox.Pending, "Pausing", sandbox.Paused, "Resuming", "Stopping"}
	ended  = []string{sandbox.Failed, sandbox.Terminated}
)

type listInput struct {
	State string `json:"state,omitempty"`
}

// listSchema is the schema of listInput, with the states.
func listSchema() *jsonschema.Schema {
	schema, err := jsonschema.For[listInput](nil)
	if err != nil {
		panic(err) // the type is fixed
	}
	for _, state := range slices.Concat(living, ended) {
		schema.Properties["state"].Enum = append(schema.Properties["state"].Enum, state)
	}
	return schema
}

type listOutput struct {
	Sandboxes []listedBox `json:"sandboxes"`
	More      bool        `json:"more,omitempty"`
}

type listedBox struct {
	boxOutput
	Image  string `json:"image"`
	Name   string `json:"name,omitempty"`
	Reason string `json:"reason,omitempty"`
	sleepSettings
}

func (t *tools) list(ctx context.Context, _ call,
	in listInput) (content, listOutput, error) {
	out := listOutput{Sandboxes: []listedBox{}}
	client, err := t.client(ctx)
	if err != nil {
		return nil, out, err
	}
	options := &sandbox.ListOptions{Limit: maxListed + 1, States: living}
	if in.State != "" {
		options.States = []string{in.State}
	}
	var shown lines
	for info, err := range client.List(ctx, options) {
		if err != nil {
			return nil, out, err
		}
		box := listedBox{outputOf(info), short(info.Image.URI, maxImage),
			short(info.Metadata["name"], maxName), reasonOf(info), sleepOf(info)}
		if len(out.Sandboxes) == maxListed || !shown.add("%s %s%s image=%s name=%q expires=%s%s\n", box.ID,
			box.State, field("reason", box.Reason), box.Image, box.Name, box.Expires, box.line()) {
			out.More = true
			fmt.Fprintf(&shown, "There are more than %d; choose a state.\n", len(out.Sandboxes))
			break
		}
		out.Sandboxes = append(out.Sandboxes, box)
	}
	switch {
	case len(out.Sandboxes) > 0:
		return text("%s", shown.String()), out, nil
	case in.State != "":
		return text("No sandbox is %s.", in.State), out, nil
	}
	return text("There are no sandboxes that have not ended."), out, nil
}

// boxInput is the sandbox that a call is about. Its description is short: it is in every tool.
type boxInput struct {
	Sandbox string `json:"sandbox" jsonschema:"id"`
}

type renewInput struct {
	boxInput
	Life int `json:"life_seconds" jsonschema:"from now, up to 86400"`
}

func (t *tools) renew(ctx context.Context, _ call,
	in renewInput) (content, boxOutput, error) {
	var none boxOutput
	if in.Life < 1 || in.Life > maxLife {
		return nil, none, fmt.Errorf("life_seconds must be 1 to %d, not %d", maxLife, in.Life)
	}
	box, err := t.box(ctx, in.Sandbox)
	if err != nil {
		return nil, none, err
	}
	until, err := box.Renew(ctx, time.Duration(in.Life)*time.Second)
	if err != nil {
		return nil, none, err
	}
	out := outputOf(box.Info())
	out.Expires = until.Format(time.RFC3339)
	return text("expires: %s", out.Expires), out, nil
}

type pauseInput struct {
	boxInput
	Paused bool `json:"paused" jsonschema:"true pauses, false resumes"`
}

func (t *tools) pause(ctx context.Context, _ call,
	in pauseInput) (content, boxOutput, error) {
	box, err := t.box(ctx, in.Sandbox)
	if err != nil {
		return nil, boxOutput{}, err
	}
	want, change := sandbox.Running, box.Resume
	if in.Paused {
		want, change = sandbox.Paused, box.Pause
	}
	// A pause of a sandbox that sleeps has requests wake it no more.
	if info := box.Info(); info.Status.State != want || in.Paused && sleeps(info) {
		if err := change(ctx); err != nil {
			return nil, boxOutput{}, err
		}
	}
	out := outputOf(box.Info())
	out.State = want
	return text("state: %s", want), out, nil
}

func (t *tools) delete(ctx context.Context, _ call,
	in boxInput) (content, error) {
	box, err := t.box(ctx, in.Sandbox)
	if err != nil {
		return nil, err
	}
	if err := box.Delete(ctx); err != nil {
		return nil, err
	}
	return text("deleted"), nil
}
