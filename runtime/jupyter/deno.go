package jupyter

import (
	"encoding/json"
	"fmt"

	"github.com/google/uuid"

	"sandbox.internal/runtime/kernel"
)

// denoImplementation is how Deno's kernel, for JavaScript and TypeScript, names itself.
const denoImplementation = "Deno kernel"

// denoMark returns a request that makes Deno print the mark to stdout and to stderr. It does not
// count as a cell.
func denoMark(session string) (question message, mark string) {
	mark = uuid.NewString()
	return newRequest(session, channelShell, typeExecuteRequest, map[string]any{
		"code":             fmt.Sprintf("void (console.log(%q), console.error(%[1]q))", mark),
		"silent":           true,
		"store_history":    false,
		"user_expressions": map[string]string{},
		"allow_stdin":      false,
		"stop_on_error":    false,
	}), mark
}

// colour is an escape sequence that sets colours and the like on a terminal.
var colour = pattern(`\\u001[bB]\[[0-9;]*m`)

// denoHandle mends what Deno says about a cell before it is passed on.
//
// It takes the colours out of the texts of results. Deno puts them there unless it was started with
// NO_COLOR; and it shows an escape character that belongs to a value as \x1b, so nothing else is
// taken away.
func denoHandle(q *request, handle func(kernel.Output)) func(kernel.Output) {
	return func(output kernel.Output) {
		if text, ok := output.Data["text/plain"]; ok && output.Type == kernel.OutputResult {
			output.Data["text/plain"] = json.RawMessage(colour().ReplaceAll(text, nil))
		}
		output.Error = denoError(q, output.Error)
		handle(output)
	}
}

// denoError gives a cell that failed because it was interrupted the name of that: Deno says Error,
// and that something has failed.
func denoError(q *request, failure *kernel.Error) *kernel.Error {
	if failure == nil || !q.interrupted.Load() {
		return failure
	}
	return &kernel.Error{Name: "KeyboardInterrupt", Traceback: failure.Traceback}
}
