"use strict";

const place = document.getElementById("contract");

if (place.dataset.program === "swagger") {
  SwaggerUIBundle({
    domNode: place,
    url: place.dataset.try,
    deepLinking: true,
    docExpansion: "list",
    defaultModelsExpandDepth: 0,
    displayRequestDuration: true,
    tryItOutEnabled: true,
    // A key that was typed in lives as long as the page, and is written nowhere.
    persistAuthorization: false,
    // There is a service on the internet that judges contracts; nobody here asks it.
    validatorUrl: null,
  });
} else {
  Redoc.init(
    place.dataset.source,
    {
      scrollYOffset: ".bar",
      expandResponses: "200,202",
      showExtensions: ["x-extension"],
      theme: {
        typography: { fontFamily: "system-ui, sans-serif", headings: { fontFamily: "system-ui, sans-serif" } },
      },
    },
    place,
  );
}
