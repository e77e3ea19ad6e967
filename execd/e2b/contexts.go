package e2b

import (
	"context"
	"net/http"
	"os"

	"github.com/labstack/echo/v4"

	"sandbox.internal/execd/code"
)

// homeDirectory is the working directory of E2B's contexts, in images that have it.
const homeDirectory = "/home/user"

// codeDirectory returns the working directory of contexts that name none: where relative paths of
// files start, or else that of E2B's images. Empty is the engine's.
func codeDirectory(r *http.Request) string {
	candidates := []string{homeDirectory}
	if user, failed := accountOf(r, ""); failed == nil {
		candidates = []string{user.directory, homeDirectory}
	}
	for _, dir := range candidates {
		if info, err := os.Stat(dir); err == nil && info.IsDir() {
			return dir
		}
	}
	return ""
}

// codeContext is a context as clients see it.
type codeContext struct {
	ID        string `json:"id"`
	Language  string `json:"language"`
	Directory string `json:"cwd"`
}

func toCodeContext(c code.Context) codeContext { return codeContext{c.ID, c.Language, c.Dir} }

func (h *handler) createContext(c echo.Context) error {
	in, err := readBody[struct {
		Language  string `json:"language"`
		Directory string `json:"cwd"`
	}](c)
	if err == nil {
		err = h.requireThawed()
	}
	dir := codeDirectory(c.Request())
	if err == nil && in.Directory != "" {
		user, failed := accountOf(c.Request(), "")
		if failed != nil {
			return h.answerText(c, refuse(http.StatusUnauthorized, "%s", failed.Message))
		}
		if dir != "" {
			user.directory = dir
		}
		dir = user.path(in.Directory)
	}
	var created code.Context
	if err == nil {
		created, err = h.Code.CreateContextIn(c.Request().Context(), languageOf(in.Language), dir)
	}
	if err != nil {
		return h.answerText(c, err)
	}
	return c.JSON(http.StatusOK, toCodeContext(created))
}

func (h *handler) listContexts(c echo.Context) error {
	out := []codeContext{}
	for _, known := range h.Code.Contexts("") {
		out = append(out, toCodeContext(known))
	}
	return c.JSON(http.StatusOK, out)
}

func (h *handler) deleteContext(c echo.Context) error { return h.onContext(c, h.Code.DeleteContext) }

func (h *handler) restartContext(c echo.Context) error { return h.onContext(c, h.Code.RestartContext) }

// onContext does something to the context that the path names.
func (h *handler) onContext(c echo.Context, do func(ctx context.Context, id string) error) error {
	err := h.requireThawed()
	if err == nil {
		err = do(c.Request().Context(), c.Param("id"))
	}
	if err != nil {
		return h.answerText(c, err)
	}
	return c.JSON(http.StatusOK, nil)
}
