"""``torchx_kfp.publisher`` as an argument of ``python3 -c``. Written by ``make goldens``."""

#: What it was made of: the SHA-256 of that module's text.
SOURCE = "439a045e38f2028c717b55c5b6d1dfdd01f2ac9510f59a2ea0b2b8e9266a8f81"

PROGRAM = (
    'import sys;sys.path=[*filter(None,sys.path)];from zlib import*;from base64 import*;exec(decompress(b64decode("'
    "jVbpcqs6Ev4dPwXnbpJyFbLMjq+mBmOwnX1PTjwuioCwOcZASXKWcfndpyXZTnxm/QONWurl+7pbPLG8rBPVumElr1rXTL03vNVjRaVaxayphX"
    "K+ybpyEul0aS31u0NlMa6SUss+le9mMWhdsMA1puKiymt3lry1Mp47x7hPvNZOyBa+ezPoBf3TLjVS/+7SCoPzWytc3Q1W0m14fWalu5vrw410"
    "tGz7rnWOv7MWd6NT0o6Y7zZqIniSxbBvlsgpturO6UVwQkPSDljHzWsxxaS1U+ROVSsn8Dqu5EoWGSbfObgcXIafHWxrH6Obp23tv3d+E96e+T"
    "cnNCLtjsvfePrSYCQniA7NE+2l8NDrzg8//e0HkPXqbn8EIb5OipI7t2LOAcSdHjMBvCaFwiFodQa9L2yDBSQyLcoSB7SntZAnHtAuKSqnUFzg"
    "Mpk9Zwls0gYaSHfvkHbch/OLvn/eIxQf0AOiyTJ2B4wF3v+RkeBqLirn8OjPv3Z/hqcDZ63AS8md7v7+0R/+aErhBEdgXUfldB2ISSTVmOM/Hh"
    "iXITuwETuB1nXcspAqKwRG+42oU2TjUuLdvHdeCzVx6oZXOP/BbNhfBMt9Xr0Uoq5+oEg8IwJl2fcGrO/qBDBxZVMCbs/o728HBwjwsXnmP9xe"
    "XAf9x/j4ohMPumwRLX9weZXWGccauYGTVJnTwwH5AqUz5gY4skZar9MDm/MfDmzKfzGfVj78A2mH7FA7428pbxS+uAmFqAW9T8o5NyLxIPV1MY"
    "aeBRRWDNeqmPHMEI4JdQ+JQfIS+zTQiHSgz6YcYJK44zaJmrggV8mMY59Q/gYQxvWU6fIhrU+Y+RS9WoC6Xtd9FVAdONgkbX1c4V2feI2ASYCR"
    "qkU6edub5o0HlenTHKoS+h0Y4kLY/af4lvZpQb/RgY5sNTxyKRuoa/CUtO9YlAAm7WP6zBI3rQV356KMVR3nEn8jLcPuCeu6MEUyiY/dFIaJ9g"
    "QcL56X+4vB8gcIbgWkE4HmvFZRPa8ygyOcXSxbO/fwbD9o0TSAT0NN44kLSc4kMGexvsZ6Gffok62sh6E/Yk8Yxhbeu6AzUF3AQULaKTva3f3D"
    "75z1Gen0LLUXtlH20t9Y+BtLvXttIdSLWu1daZQLiWhIEXRxOnFOoksnTSrN8qQuMw/4dmZciSKlTj1XzVwhqsMgNvBHik+pT3Twt0MkuJyXSq"
    "LR5zy+sgUyMxd5D+Csgvf9UtconDwhRvDJOt+vxI1jXRtxzNipd4n7Q9QkAhYUF2B4+DgaIhuHhhaN6Fed9CljSCqBbDe72XzWSLAFZm2ed6a8"
    "2ld4FSKikPdsLpXzzBE91WEhOqBIVx+iJ3AuY5ZP11ZVDFW1r0SSTrkAjqFbmzJJOTQ+oujnowiR5X4iVJEnqZI/tCPDLAR2gwGWjQKNyF8PTa"
    "seu6bwJc6ItxopZ3qkSKhHnkFZlaCiphQJ8fi/q7czQgEZyeO0rqRKKsUAAbhehnyINIJoNGK8tRMNkeUPvAMTuv+QhxDVq0mWqETTYcnUbJaA"
    "zJQQmmtK/1E02/FviKWFifuc9bfUQM/298HIMuubuQEmow8uNhu32djmYhemNySoimrOwVTAIii+oU1j1D4ffqQxsqpPC7UAFjZDa6qBR97+Pj"
    "hwgtUNsv4GQ3NRoJEXsOCDXPk7rabwTrRAPjRjaTXjVAt2UK9tsMCUHbi1XsY0+NdREpgjG97Hbl5UGazWYhiMvAnLfz0b3sC3N2r/5/k5+X5+"
    "tsfQT+v6oJNN/V/inK7bYgsz3SLQZNs9tdm6+MSlt830kmxu1TszWkNweE53Q10X0aZez0jbhxtpdecN0dY1BgT2/o3y9toPTsLruOPfhLClz0"
    "JAItryDrBs/oyS6h37Br5Yj3GM7DhH9LyuONEI+xrhwNVZxxo/4gW6/bavDEdNuFPMkjF3JonUY29lhxhPfU3lgOk/xfbJZmAN1pYG9mZYf57i"
    'iK4hOCdrdCFwGtIe9T9dEKF5Ffbv9WJ9Pv/hU2TredzMn8tCTpxFD64Zf+k5i4svAm6bFgTyMTRRHM+Soopj5IV4N3ATMX4ZHnoj8k8="),-'
    "15))"
)
