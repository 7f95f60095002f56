"""``torchx_kfp.publisher`` as an argument of ``python3 -c``. Written by ``make goldens``."""

#: What it was made of: the SHA-256 of that module's text.
SOURCE = "b352b62319c7b5b4dbd807dd2ef0bd6b6f7fc8ec32e4953050a72530d93269d3"

PROGRAM = (
    'import sys;sys.path=[*filter(None,sys.path)];from zlib import*;from base64 import*;exec(decompress(b64decode("'
    "jVZtc+I2EP4cfoXDtCMpVUySa2865jRTYwyY1ySQSy6U8RgsgwvYHtnkpQz/vSsZU8hdZ/rFLJKs3X2eZ3f9yIJV7GWlBhsMbSFiURqwMMpK4T"
    "qJRaZNvZR//lXzUs2nf6VxJK06jVP5W6NpOI+8lbRNmr6rRav0wCxd3emGURDra++t5PNAa2OHGKWzJtua+tBpWq1unSqr9XCbG05/lBt3D87e"
    "Gtn3vdx6GN5fH6ybXdXUc+f4w21uvdEl1RYz9SRbCO75Lpxbe+kyP+jWugOrQ5ukarGaHsRiiUnpLAy0KM40y6jpKc/S0Mfkg4Nb59Y+dnC6+9"
    "QYPp/u/tj50B71zGGHtki1pvM3PntJMEoXiI7VE13O4CHXtfJPf5TBlqsXzgRCfF2EK66NxIYDiGd1pgJ49cIMN2FXZlA/Zwcs5JmzTLxDQstw"
    "tUrm2KJ1ee6Mv814kmmN/U6xDkjgNrVJGGlhxgVeeeup78Eh6SIBQC6vaU1/7A9aZr9JKL6iV4QoL+C5zZhl/I+cBc82ItKub37/xf4Znhq8mx"
    "t8lXLNrlRufvusxNLBdXk7RKVZGsRU01dhmvmhwKiSiHiGlG+ZoAzhNcwWWpzwCAdltV3ZWrsKj15CEUdlisQUEZCmbTSZrcsQMdHTZAXYTdGf"
    "b1dXiOwTCcqjwb3VenLbg5rr1Nm2vivrPJrFPscSmqbmRb42wBY5B/XMuUKGFFDK9VwFHafblXfmYOMG/eqtNlyVFzGuVIZfsUktmUUNKmTJIb"
    "UU1/TEyxY62JG35tgklL9B2m68ZJJ4qYJDpiZFr3ladaOuvwpgDVuHWIny0ccXJjESAfWMURaL2eLtchkkBmjKpAHoCSoVUOVC5Oe7+JbalNOA"
    "tmVk+xYQpGkCigRPT9U71vCAqmqHfmNP+iwWXN+IlZvFbpDiAAKUlHRZXYf691Pc0WfQBqQnYGb7bVfZtndlCO6gQtjpx1kj3kS+Qgfe3e5KZ8"
    "/wrDaUKYVpQr0C+l0dklynWHEPbGXvCcdyBw/oYy7GxticsEcMPQdfPtA1bD3Au6TgV22zpvEsf5uqHCAboy/RDFNEmwDqIpwttE7jVpt5kWwK"
    "i3jlG9AetDXPRDirSiC8SIs3WbLJEJVXkjzMe4pb1CQy1NsxEjzdrLIUTY6j7jHckKpvMYZUj0RK+V0ixQSEHyXWI7rrSh247jlraVAJ8iWgEk"
    "kNQmSXNxcXnz99YT3GZBBf1F/jTkml2gfCF1zLg0AU8ltvUmjnHNEW5Boh2i5yFRx49LmPaK5ZichXbI9R4glwD90AkhjfT8Yoz1mShia0V+SR"
    "ZiLPoq77m3WSQuRwD7zviSwMvJnEYIxy9JR5vH6Vb3m+l3lowp6rHsuVoud6dUGvlUx4syUXla2vTz/d7DXe/lfsus9za1c53F2uOko/EOTtiU"
    "uJXkdXhZViT7Ei28xctpkU9M59kO0KtqiSOnS56Y/0PCcU8Em5O4ujNPOijAEOpOqMp2MkWUOTCZvmupDCWEhh0KHUxt9hgk9DKhRCuQpnxj6A"
    "d/8daLlOTDW14ErnA+3F4WPitQ+kzwEALiTtFw6pQhZZGG24dH/CiAPSOl6IBZSmtV+W7Qrtg1nsg4GB9g43r/XWqNeVIyz/1/PE0o9fI2hZkY"
    "+MSgVECAMXnG1ECH4sJT24x1KF/N9dcfixK1ZH1Pq+GVlFzY/0MJWDA5rtSFWZRYcUNL8RafjCi8a61706kRMMx2BdFcKJ7guVb48oMU4J25HD"
    "rLtTjdXGPdqnF7akt3FQUw8+FGCM7OfUGJ3MHjSpNn+wObo3rY5979bMoQ1HWiCVFUyDxol/YkwO3zRe9A6DOAgjmMvQxjHK2zmi/TjiRCrflA"
    "qydEmxK5EmhiXL43Rk7DtJqkWc+8VIgPek2sK1N+co/4xqSfYc1sYw7juHhuYUVzr7EbH/24XRWKDRJwXQkAGMoaasmMOksNVPmH+ADor3g/Jx"
    'iPuGnWym8LGw0LbmTka4be4MbTs4FzB5ShBL0VShc7nu2gsj1wX+8IWle2L+Mr42JuQf"),-15))'
)
